// SPDX-License-Identifier: Apache-2.0
//
// What every codec's states promise of payloads, for the rows of codec_table.h: sizes, results that
// decode alike everywhere, refusal of what has the wrong length or place, and no step beyond the
// memory whatever the bytes are. Payloads lie at the very end of their memory, so that a sanitizer
// sees a byte too many.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/codec_table.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kRanks = 3;
constexpr uint32_t kCounts[] = {1, 31, 32, 33, 255, 256, 257, 1500};

Format Sum(int contributions) { return {Form::kSum, static_cast<uint16_t>(contributions)}; }

// The states of all ranks of an all-reduce or all-gather of fp32, with their inputs.
class World {
 public:
  World(const char* spec, Collective collective, uint32_t count, double largest, Rng* rng)
      : codec_(*MakeCodec(spec)), range_{0, 0, count}, collective_(collective) {
    for (int r = 0; r < kRanks; ++r) {
      Bytes x(count * sizeof(float));
      for (uint32_t i = 0; i < count; ++i) {
        const double unit = (rng->Uniform() * 2 - 1) * std::min(16.0, largest / 8);
        const auto value = static_cast<float>(std::ldexp(unit, -static_cast<int>(rng->Below(9))));
        std::memcpy(x.data() + i * sizeof value, &value, sizeof value);
      }
      inputs_.push_back(std::move(x));
      states_.push_back(codec_->NewState());
      EXPECT_TRUE(states_.back()
                      ->Begin({.collective = collective,
                               .nranks = kRanks,
                               .rank = r,
                               .count = count,
                               .seed = 1,
                               .step = 2})
                      .ok());
    }
    for (uint16_t phase = 0; phase < codec_->side_phases().size(); ++phase) {
      Agree({Form::kSide, phase});
    }
  }

  const Codec& codec() const { return *codec_; }
  const Range& range() const { return range_; }
  uint32_t capacity() const { return codec_->MaxBytes(DataType::kFloat32, kRanks, range_.count); }
  Term In(int rank) { return Of({Form::kInput}, &inputs_[static_cast<size_t>(rank)]); }
  static Term Of(const Format& format, Bytes* bytes) {
    return {format, bytes->data(), static_cast<uint32_t>(bytes->size())};
  }

  Status Try(int rank, const std::vector<Term>& inputs, std::vector<Term>* outputs) {
    return states_[static_cast<size_t>(rank)]->Combine(range_, inputs, *outputs);
  }
  Bytes MakeResult(Bytes* one, Bytes* two) {
    return Make(0, {In(0), Of(Sum(1), one), Of(Sum(1), two)}, {Form::kResult});
  }
  // The payload of one output, in memory of its length.
  Bytes Make(int rank, const std::vector<Term>& inputs, const Format& format) {
    Bytes payload(format.form == Form::kOutput ? range_.count * sizeof(float)
                  : format.form == Form::kSide ? kWindow / kBlock
                                               : capacity());
    std::vector<Term> outputs = {Of(format, &payload)};
    const Status status = Try(rank, inputs, &outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_LE(outputs[0].bytes, payload.size());
    return {payload.begin(), payload.begin() + outputs[0].bytes};
  }

 private:
  void Agree(const Format& side) {
    Bytes other = Make(1, {In(1)}, side), third = Make(2, {In(2)}, side);
    std::vector<Term> parts = {In(0), Of(side, &other), Of(side, &third)};
    if (!Reduces(collective_)) parts.resize(1);
    Bytes agreed = Make(0, parts, side);
    for (int r = 0; r < kRanks; ++r) {
      std::vector<Term> own = {{side, nullptr, 0}};
      const Status status = Try(r, {Of(side, &agreed)}, &own);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  std::shared_ptr<const Codec> codec_;
  Range range_;
  Collective collective_;
  std::vector<Bytes> inputs_;
  std::vector<std::unique_ptr<CodecState>> states_;
};

class CodecPayload : public testing::TestWithParam<CodecRow> {
 protected:
  World MakeWorld(uint32_t count, Collective collective = Collective::kAllReduce) {
    return {GetParam().spec, collective, count, GetParam().largest, &rng_};
  }
  Rng rng_{TestSeed()};
};

TEST_P(CodecPayload, SumsMeetInAnyFormAndResultsDecodeAlike) {
  for (const uint32_t count : kCounts) {
    SCOPED_TRACE(count);
    World w = MakeWorld(count);
    Bytes one = w.Make(1, {w.In(1)}, Sum(1)), two = w.Make(2, {w.In(2)}, Sum(1));
    // An own contribution counts as it would from elsewhere.
    Bytes zero = w.Make(0, {w.In(0)}, Sum(1));
    Bytes mine = w.Make(0, {w.In(0), World::Of(Sum(1), &one)}, Sum(2));
    const Bytes theirs = w.Make(1, {World::Of(Sum(1), &zero), w.In(1)}, Sum(2));
    EXPECT_TRUE(mine == theirs);
    Bytes result(w.capacity()), owners(count * sizeof(float));
    std::vector<Term> outputs = {World::Of({Form::kResult}, &result),
                                 World::Of({Form::kOutput}, &owners)};
    ASSERT_TRUE(w.Try(2, {World::Of(Sum(2), &mine), w.In(2)}, &outputs).ok());
    result.resize(outputs[0].bytes);
    EXPECT_TRUE(w.Make(0, {World::Of({Form::kResult}, &result)}, {Form::kOutput}) == owners);
    EXPECT_TRUE(w.Make(0, {World::Of({Form::kResult}, &result)}, {Form::kResult}) == result);
    const std::vector<Term> parts = {w.In(0), World::Of(Sum(1), &one), World::Of(Sum(1), &two)};
    const Bytes at_once = w.Make(0, parts, {Form::kOutput});
    Bytes sent = w.Make(0, parts, {Form::kResult});
    EXPECT_TRUE(w.Make(1, {World::Of({Form::kResult}, &sent)}, {Form::kOutput}) == at_once);
    EXPECT_TRUE(at_once == owners || !GetParam().any_order);
  }
}

TEST_P(CodecPayload, WhatOneRankSendsDecodesAlikeAtItsOwner) {
  const auto codec = *MakeCodec(GetParam().spec);
  if (!codec->Fits(Collective::kAllGather, kRanks).ok()) {
    const CollectiveArgs call{.collective = Collective::kAllGather, .nranks = kRanks, .count = 100};
    EXPECT_EQ(codec->NewState()->Begin(call).code(), Code::kInvalidArgument);
    return;
  }
  for (const uint32_t count : kCounts) {
    SCOPED_TRACE(count);
    World w = MakeWorld(count, Collective::kAllGather);
    Bytes result(w.capacity()), owners(count * sizeof(float));
    std::vector<Term> outputs = {World::Of({Form::kResult}, &result),
                                 World::Of({Form::kOutput}, &owners)};
    ASSERT_TRUE(w.Try(0, {w.In(0)}, &outputs).ok());
    result.resize(outputs[0].bytes);
    EXPECT_TRUE(w.Make(1, {World::Of({Form::kResult}, &result)}, {Form::kOutput}) == owners);
    std::vector<Term> sum = {World::Of(Sum(1), &result)};
    // "none" moves whatever it is told to.
    EXPECT_TRUE(!w.Try(0, {w.In(0)}, &sum).ok() || std::string(GetParam().spec) == "none");
  }
}

TEST_P(CodecPayload, LengthsThatAreNotDueAreRefused) {
  World w = MakeWorld(1500);
  for (const bool sum : {true, false}) {
    Bytes one = w.Make(1, {w.In(1)}, Sum(1)), two = w.Make(2, {w.In(2)}, Sum(1));
    const Bytes right = sum ? one : w.MakeResult(&one, &two);
    ASSERT_GT(right.size(), 1u);
    for (const size_t length : {size_t{0}, size_t{1}, right.size() / 2, right.size() - 1,
                                right.size() + 1, right.size() * 2}) {
      SCOPED_TRACE(fmt::format("{} bytes for {}", length, right.size()));
      Bytes wrong = right, room(w.capacity());
      wrong.resize(length);
      wrong.shrink_to_fit();
      std::vector<Term> outputs = {World::Of(Sum(2), &room)};
      std::vector<Term> inputs = {World::Of(Sum(1), &wrong), w.In(0)};
      if (!sum) {
        room.resize(1500 * sizeof(float));
        outputs = {World::Of({Form::kOutput}, &room)};
        inputs = {World::Of({Form::kResult}, &wrong)};
      }
      const Status status = w.Try(0, inputs, &outputs);
      EXPECT_EQ(status.code(), Code::kInternalError);
      EXPECT_NE(status.message().find(fmt::format("{}", length)), std::string::npos)
          << status.message();
    }
  }
}

TEST_P(CodecPayload, OutputsThatAreTooSmallAreRefused) {
  World w = MakeWorld(1500);
  const size_t needed = w.Make(0, {w.In(0)}, Sum(1)).size();
  for (const size_t length : {size_t{0}, needed / 2, needed - 1}) {
    Bytes room(length);
    std::vector<Term> outputs = {World::Of(Sum(1), &room)};
    EXPECT_EQ(w.Try(0, {w.In(0)}, &outputs).code(), Code::kInternalError) << length;
  }
}

// What is too much for 32 bits is not taken for little.
TEST_P(CodecPayload, LargestSizesAscend) {
  const auto codec = *MakeCodec(GetParam().spec);
  for (const int ranks : {2, 64}) {
    const DataType type = DataType::kFloat32;
    if (!codec->Supports(Collective::kAllReduce, type, ReduceOp::kSum, ranks).ok()) continue;
    uint32_t last = 0, last_side = 0;
    for (uint64_t count = 1; count <= UINT32_MAX; count += count / 3 + 1) {
      const auto here = static_cast<uint32_t>(count);
      ASSERT_GE(codec->MaxBytes(type, ranks, here), last) << count;
      ASSERT_GE(codec->SideBytes(here), last_side) << count;
      last = codec->MaxBytes(type, ranks, here);
      last_side = codec->SideBytes(here);
    }
  }
}

// Any bytes of any length end in numbers or in an error that says something.
TEST_P(CodecPayload, MutatedPayloadsAreHarmless) {
  int refused = 0, taken = 0;
  for (const uint32_t count : {700u, 33u}) {
    World w = MakeWorld(count);
    Bytes one = w.Make(1, {w.In(1)}, Sum(1)), two = w.Make(2, {w.In(2)}, Sum(1));
    const Bytes result = w.MakeResult(&one, &two);
    for (int i = 0; i < 400; ++i) {
      const bool sum = rng_.Below(2) == 0;
      Bytes bytes = sum ? one : result;
      for (uint64_t k = 1 + rng_.Below(i % 4 == 0 ? bytes.size() : 4); k > 0; --k) {
        bytes[rng_.Below(bytes.size())] = static_cast<std::byte>(rng_.Next());
      }
      if (rng_.Below(8) == 0) bytes.resize(rng_.Below(2 * bytes.size()));
      bytes.shrink_to_fit();
      Bytes room(sum ? w.capacity() : count * sizeof(float));
      std::vector<Term> outputs = {World::Of(sum ? Sum(2) : Format{Form::kOutput}, &room)};
      const Status status = sum ? w.Try(0, {World::Of(Sum(1), &bytes), w.In(0)}, &outputs)
                                : w.Try(0, {World::Of({Form::kResult}, &bytes)}, &outputs);
      (status.ok() ? taken : refused) += 1;
      ASSERT_EQ(status.ok(), status.message().empty());
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(taken, 0);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecPayload, testing::ValuesIn(kCodecTable), CodecRowName);

}  // namespace
}  // namespace inccl::test
