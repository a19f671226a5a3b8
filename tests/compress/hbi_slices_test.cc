// SPDX-License-Identifier: Apache-2.0
//
// Whole slices on every instruction set against the scalar reference, byte for byte: side words,
// payloads, the owner's step and results of plans in which neighbouring superblocks have other
// widths, of fp32, bf16 and fp16, with superblocks that are zero or not finite; and results of any
// bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::hbi {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kRoom = 100000;  // more than all superblocks of a slice can take

// Elements with a magnitude for each superblock, some zero, some not finite.
Bytes RandomElements(DataType type, uint32_t count, Rng* rng) {
  std::vector<float> x(count);
  for (uint32_t first = 0; first < count; first += kSuperblock) {
    const uint64_t kind = rng->Below(12);
    const int octave = static_cast<int>(rng->Below(20)) - 14;
    for (uint32_t i = first; i < std::min(count, first + kSuperblock); ++i) {
      x[i] = kind == 0 ? 0.0f : static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave));
    }
    if (kind == 1) x[first] = std::numeric_limits<float>::infinity();
    if (kind == 2) x[first] = std::numeric_limits<float>::quiet_NaN();
  }
  Bytes elements(count * SizeOf(type));
  FromFloat(type, x.data(), elements.data(), count);
  return elements;
}

// A call of n ranks, all of whose work this does with the kernels of one instruction set.
class Slices {
 public:
  Slices(const Kernels& kernels, const Planner& planner, DataType type, uint32_t count,
         std::span<const Bytes> ranks, bool average, bool stream)
      : planner_(planner), ranks_(ranks), count_(count) {
    slice_ = {.kernels = &kernels,
              .planner = &planner,
              .type = type,
              .average = average,
              .stream = stream,
              .counter = 12345,
              .count = count};
    const uint32_t superblocks = slice_.superblocks();
    words_.resize(superblocks * kWordBytes);
    points_.resize(superblocks);
    for (size_t r = 0; r < ranks.size(); ++r) {
      FoldOwnWords(slice_, ranks[r].data(), r == 0, words_.data());
    }
    slice_.words = words_.data();
    PlanSummary summary;
    planner.Plan(words_.data(), points_, &summary);
    slice_.points = points_.data();
  }

  // The sum of the payloads of some ranks.
  std::vector<uint8_t> Sum(std::span<const std::vector<uint8_t>> payloads) {
    const SliceContext slice = At(0);
    std::vector<Source> sources;
    for (const std::vector<uint8_t>& payload : payloads) {
      sources.push_back({.at = payload.data(), .end = payload.data() + payload.size()});
    }
    std::vector<uint8_t> sum(SumBytes(slice, static_cast<uint32_t>(payloads.size())));
    SliceOutputs outputs;
    outputs.sum = {sum.data(), sum.data() + sum.size()};
    FoldSlice(slice, sources, outputs);
    return sum;
  }
  // Payloads end where their memory ends, or `room` bytes before.
  std::vector<uint8_t> Encode(size_t rank, size_t room = 0) {
    SliceContext slice = At(rank);
    Source own{.elements = ranks_[rank].data()};
    const uint64_t bytes = SumBytes(slice, 1);
    std::vector<uint8_t> payload(bytes + room);
    SliceOutputs outputs;
    outputs.sum = {payload.data(), payload.data() + payload.size()};
    FoldSlice(slice, {&own, 1}, outputs);
    payload.resize(bytes);
    return payload;
  }
  // Payloads are of one rank each, or sums of `contributions`. Without `result` it makes the
  // elements alone.
  void Own(std::span<const std::vector<uint8_t>> payloads, std::vector<uint8_t>* result,
           Bytes* elements, size_t room = 0, uint32_t contributions = 1) {
    SliceContext slice = At(0);
    std::vector<Source> sources = {{.elements = ranks_[0].data()}};
    for (const std::vector<uint8_t>& payload : payloads) {
      sources.push_back({.at = payload.data(),
                         .end = payload.data() + payload.size(),
                         .contributions = contributions});
    }
    elements->assign(count_ * SizeOf(slice.type), {});
    SliceOutputs outputs;
    outputs.elements = elements->data();
    if (result == nullptr) return FoldSlice(slice, sources, outputs);
    result->assign(ResultBytes(slice) + room, 0);
    outputs.result = {result->data(), result->data() + result->size()};
    FoldSlice(slice, sources, outputs);
    result->resize(ResultBytes(slice));
  }
  Bytes Decode(const std::vector<uint8_t>& result) {
    Bytes elements(count_ * SizeOf(slice_.type));
    DecodeResult(At(0), result.data(), elements.data());
    return elements;
  }
  const std::vector<uint8_t>& words() const { return words_; }

 private:
  SliceContext At(size_t rank) const {
    SliceContext slice = slice_;
    slice.offsets = OffsetsOf(static_cast<int>(rank), planner_.nranks(), false);
    return slice;
  }

  const Planner& planner_;
  const std::span<const Bytes> ranks_;
  const uint32_t count_;
  SliceContext slice_;
  std::vector<uint8_t> words_, points_;
};

class HbiSlicesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetSimdTarget("best").ok()); }
};

TEST_P(HbiSlicesTest, EqualTheReference) {
  Rng rng(test::TestSeed());
  for (int call = 0; call < 60; ++call) {
    const int n = rng.Below(12) == 0 ? 30 : 2 + static_cast<int>(rng.Below(5));
    const auto type = std::vector<DataType>{DataType::kFloat32, DataType::kBfloat16,
                                            DataType::kFloat16}[rng.Below(3)];
    const auto bits8 = static_cast<uint32_t>(8 + rng.Below(90));
    const auto count = static_cast<uint32_t>(1 + rng.Below(40 * kSuperblock));
    SCOPED_TRACE(testing::Message() << "call " << call << ": " << n << " ranks, " << Name(type)
                                    << ", bits8 " << bits8 << ", " << count << " elements");
    const Planner planner(Collective::kAllReduce, n, Config{.bits8 = bits8});
    std::vector<Bytes> ranks;
    for (int r = 0; r < n; ++r) ranks.push_back(RandomElements(type, count, &rng));
    const bool average = rng.Below(2) == 0, stream = rng.Below(2) == 0;
    Slices expected(ScalarKernels(), planner, type, count, ranks, average, false);
    Slices slices(BestKernels(), planner, type, count, ranks, average, stream);
    ASSERT_EQ(slices.words(), expected.words());
    std::vector<std::vector<uint8_t>> payloads;
    for (size_t r = 1; r < ranks.size(); ++r) {
      payloads.push_back(expected.Encode(r));
      ASSERT_EQ(slices.Encode(r), payloads.back()) << "rank " << r;
      ASSERT_EQ(slices.Encode(r, kRoom), payloads.back()) << "rank " << r;
    }
    std::vector<uint8_t> result, expected_result;
    Bytes elements, expected_elements;
    expected.Own(payloads, &expected_result, &expected_elements);
    slices.Own(payloads, &result, &elements);
    ASSERT_EQ(result, expected_result);
    ASSERT_EQ(elements, expected_elements);
    slices.Own(payloads, &result, &elements, kRoom);
    ASSERT_EQ(result, expected_result);
    ASSERT_EQ(elements, expected_elements);
    ASSERT_EQ(slices.Decode(result), expected_elements);
    slices.Own(payloads, nullptr, &elements);
    ASSERT_EQ(elements, expected_elements);
    // The same from sums of as many ranks each, as at the end of a ring.
    std::vector<uint32_t> divisors;
    for (uint32_t d = 2; d < ranks.size(); ++d) {
      if (payloads.size() % d == 0) divisors.push_back(d);
    }
    if (divisors.empty()) continue;
    const uint32_t contributions = divisors[rng.Below(divisors.size())];
    std::vector<std::vector<uint8_t>> sums;
    for (size_t i = 0; i < payloads.size(); i += contributions) {
      sums.push_back(expected.Sum(std::span(payloads).subspan(i, contributions)));
    }
    slices.Own(sums, &result, &elements, 0, contributions);
    ASSERT_EQ(result, expected_result) << "from sums of " << contributions;
    ASSERT_EQ(elements, expected_elements) << "from sums of " << contributions;
  }
}

// A peer may change a result in its memory after this rank has checked the words: any bytes decode
// as by the reference.
TEST_P(HbiSlicesTest, ResultsThatChangeAfterTheCheck) {
  Rng rng(test::TestSeed());
  for (int call = 0; call < 40; ++call) {
    const auto type = std::vector<DataType>{DataType::kFloat32, DataType::kBfloat16,
                                            DataType::kFloat16}[rng.Below(3)];
    const auto count = static_cast<uint32_t>(1 + rng.Below(20 * kSuperblock));
    const std::vector<Bytes> ranks = {RandomElements(type, count, &rng),
                                      RandomElements(type, count, &rng)};
    const Planner planner(Collective::kAllReduce, 2,
                          Config{.bits8 = static_cast<uint32_t>(24 + rng.Below(64))});
    const bool average = rng.Below(2) == 0;
    Slices expected(ScalarKernels(), planner, type, count, ranks, average, false);
    Slices slices(BestKernels(), planner, type, count, ranks, average, false);
    std::vector<uint8_t> result;
    Bytes elements;
    const std::vector<uint8_t> payload = expected.Encode(1);
    expected.Own({&payload, 1}, &result, &elements);
    for (uint8_t& byte : result) byte = static_cast<uint8_t>(rng.Next());
    ASSERT_EQ(slices.Decode(result), expected.Decode(result));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, HbiSlicesTest, testing::ValuesIn(SimdTargets()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace inccl::hbi
