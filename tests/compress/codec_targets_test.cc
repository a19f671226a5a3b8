// SPDX-License-Identifier: Apache-2.0
//
// Every codec on every instruction set: payloads and results are those of the plain reference, byte
// for byte, over ordinary elements and those that are no numbers, for every length of the end of a
// vector, and for payloads that no codec has written.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/codec_table.h"
#include "compress/kernels/convert.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kRanks = 4;

// One call on one rank. Payloads end where their memory ends.
class Call {
 public:
  Call(const char* spec, DataType type, uint32_t count, uint64_t seed, bool stream = false)
      : codec_(*MakeCodec(spec)), state_(codec_->NewState()), range_{0, 0, count}, type_(type) {
    const CollectiveArgs call{
        .type = type, .nranks = kRanks, .rank = 1, .count = count, .seed = seed};
    state_->set_non_temporal(stream, false);
    EXPECT_TRUE(state_->Begin(call).ok());
  }

  void Agree(const std::vector<Bytes>& ranks) {
    for (uint16_t phase = 0; phase < codec_->side_phases().size(); ++phase) {
      const size_t first = sides_.size();
      for (const Bytes& elements : ranks) {
        sides_.push_back(Run({Own(elements)}, {Form::kSide, phase}, codec_->SideBytes(count())));
      }
      std::vector<Term> sent;
      for (size_t r = first; r < sides_.size(); ++r) {
        sent.push_back(In({Form::kSide, phase}, sides_[r]));
      }
      Term agreed{{Form::kSide, phase}, nullptr, 0};
      EXPECT_TRUE(state_->Combine(range_, sent, {&agreed, 1}).ok());
    }
  }
  Bytes Sum(const Bytes& elements) { return Run({Own(elements)}, {Form::kSum, 1}); }
  Bytes Hop(const Bytes& sum, const Bytes& elements) {
    return Run({In({Form::kSum, 1}, sum), Own(elements)}, {Form::kSum, 2});
  }
  Bytes Result(const Bytes& sum, const Bytes& own, const Bytes& third) {
    return Run({Own(own), In({Form::kSum, 2}, sum), Own(third)}, {Form::kResult});
  }
  Bytes Decode(const Bytes& result) {
    return Run({In({Form::kResult}, result)}, {Form::kOutput},
               static_cast<uint32_t>(count() * SizeOf(type_)));
  }
  // Of a payload, or of all ranks' elements; to memory that begins there.
  void Output(const Bytes& result, std::byte* to) { RunTo({In({Form::kResult}, result)}, to); }
  void Output(const std::vector<Bytes>& ranks, std::byte* to) {
    std::vector<Term> inputs;
    for (const Bytes& elements : ranks) inputs.push_back(Own(elements));
    RunTo(inputs, to);
  }
  const std::vector<Bytes>& sides() const { return sides_; }
  int refused() const { return refused_; }  // operations

 private:
  uint32_t count() const { return range_.count; }
  static Term In(Format format, const Bytes& bytes) {
    return {format, const_cast<std::byte*>(bytes.data()), static_cast<uint32_t>(bytes.size())};
  }
  static Term Own(const Bytes& elements) { return In({Form::kInput}, elements); }
  Bytes Run(const std::vector<Term>& inputs, Format format, uint32_t room = 0) {
    Bytes out(room != 0 ? room : codec_->MaxBytes(type_, kRanks, count()));
    Term output{format, out.data(), static_cast<uint32_t>(out.size())};
    const bool ok = state_->Combine(range_, inputs, {&output, 1}).ok();
    refused_ += ok ? 0 : 1;
    out.resize(ok ? output.bytes : 0);
    out.shrink_to_fit();
    return out;
  }

  void RunTo(const std::vector<Term>& inputs, std::byte* to) {
    Term output{{Form::kOutput}, to, static_cast<uint32_t>(count() * SizeOf(type_))};
    EXPECT_TRUE(state_->Combine(range_, inputs, {&output, 1}).ok());
  }

  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
  Range range_;
  DataType type_;
  std::vector<Bytes> sides_;
  int refused_ = 0;
};

Bytes Elements(DataType type, uint32_t count, bool special, Rng* rng) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {0.0f,   -0.0f, 0x1p-149f, -0x1p-127f, 448,       464,        480,
                                -57344, 61440, NAN,       -NAN,       kInfinity, -kInfinity, 3e38f};
  std::vector<float> x(count);
  for (uint32_t i = 0; i < count; ++i) {
    const int octave = 8 - static_cast<int>(i / 64 % 5 * 6 + rng->Below(4));
    x[i] = static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave));
    // Others than those of blocks without any, some not even numbers.
    if (!special || i / 32 % 3 != 0) continue;
    if (rng->Below(8) == 0) x[i] = kSpecial[rng->Below(std::size(kSpecial))];
    if (rng->Below(8) == 0) x[i] = std::bit_cast<float>(static_cast<uint32_t>(rng->Next()));
  }
  Bytes elements(count * SizeOf(type));
  FromFloat(type, x.data(), elements.data(), count);
  return elements;
}

// All that a call makes of these elements, and of a damaged payload.
std::vector<Bytes> Everything(const char* spec, DataType type, uint32_t count, uint64_t seed,
                              const std::vector<Bytes>& ranks, const Bytes* damaged) {
  Call call(spec, type, count, seed);
  call.Agree(ranks);
  std::vector<Bytes> all = call.sides();
  all.push_back(call.Sum(ranks[0]));
  all.push_back(call.Hop(all.back(), ranks[1]));
  all.push_back(call.Result(all.back(), ranks[2], ranks[3]));
  all.push_back(call.Decode(all.back()));
  EXPECT_EQ(call.refused(), 0);
  if (damaged != nullptr) {
    all.push_back(call.Hop(*damaged, ranks[1]));
    all.push_back(call.Decode(*damaged));
    all.push_back({static_cast<std::byte>(call.refused())});
  }
  return all;
}

class CodecTargetsTest : public testing::TestWithParam<CodecRow> {
 protected:
  void TearDown() override { ASSERT_TRUE(SetSimdTarget("best").ok()); }

  void Compare(DataType type, uint32_t count, bool special) {
    std::vector<Bytes> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(Elements(type, count, special, &rng_));
    const uint64_t seed = rng_.Next();
    ASSERT_TRUE(SetSimdTarget("scalar").ok());
    const char* spec = GetParam().spec;
    std::vector<Bytes> expected = Everything(spec, type, count, seed, ranks, nullptr);
    ASSERT_FALSE(expected.back().empty());
    Bytes damaged = expected[expected.size() - 4];  // the sum of one
    for (int i = 0; i < 3 && !damaged.empty(); ++i) {
      damaged[rng_.Below(damaged.size())] = static_cast<std::byte>(rng_.Next());
    }
    expected = Everything(spec, type, count, seed, ranks, &damaged);
    for (const std::string& target : SimdTargets()) {
      SCOPED_TRACE(target + " " + Name(type) + " " + std::to_string(count));
      ASSERT_TRUE(SetSimdTarget(target).ok());
      const std::vector<Bytes> found = Everything(spec, type, count, seed, ranks, &damaged);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_TRUE(found[i] == expected[i]) << "operation " << i << " of " << found.size();
      }
    }
  }

  Rng rng_{TestSeed()};
};

TEST_P(CodecTargetsTest, PayloadsAndResultsAreTheReferences) {
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    for (const bool special : {false, true}) {
      for (const uint32_t count : {1u, 7u, 31u, 33u, 100u, 255u, 256u, 257u, 700u, 1791u}) {
        ASSERT_NO_FATAL_FAILURE(Compare(type, count, special));
      }
    }
  }
  for (int round = 0; round < 20; ++round) {
    const auto count = static_cast<uint32_t>(1 + rng_.Below(600));
    ASSERT_NO_FATAL_FAILURE(Compare(DataType::kFloat32, count, rng_.Below(2) == 0));
  }
}

// Wherever they begin, and nothing beside them.
TEST_P(CodecTargetsTest, ResultsPastTheCachesAreTheSame) {
  constexpr size_t kAround = 128;
  const DataType type = DataType::kFloat32;
  for (const uint32_t count : {1u, 256u, 5000u, 20480u}) {
    std::vector<Bytes> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(Elements(type, count, r == 2, &rng_));
    const size_t bytes = count * SizeOf(type);
    for (const std::string& target : SimdTargets()) {
      ASSERT_TRUE(SetSimdTarget(target).ok());
      Call plain(GetParam().spec, type, count, 3), streamed(GetParam().spec, type, count, 3, true);
      plain.Agree(ranks);
      streamed.Agree(ranks);
      const Bytes result =
          plain.Result(plain.Hop(plain.Sum(ranks[0]), ranks[1]), ranks[2], ranks[3]);
      for (const size_t at : {size_t{0}, size_t{4}, size_t{16}, size_t{60}}) {
        SCOPED_TRACE(target + " " + std::to_string(count) + " at " + std::to_string(at));
        alignas(64) static std::byte expected[20480 * 4 + 2 * kAround], found[sizeof expected];
        for (const bool folded : {false, true}) {
          std::memset(expected, 0xA5, sizeof expected);
          std::memset(found, 0xA5, sizeof found);
          std::byte* to = expected + kAround + at;
          folded ? plain.Output(ranks, to) : plain.Output(result, to);
          to = found + kAround + at;
          folded ? streamed.Output(ranks, to) : streamed.Output(result, to);
          ASSERT_EQ(std::memcmp(found, expected, bytes + 2 * kAround), 0) << folded;
        }
      }
    }
  }
}

// Sums in groups take another way: hbi_groups_test has them on every instruction set.
std::vector<CodecRow> RowsWithoutGroups() {
  std::vector<CodecRow> rows;
  for (const CodecRow& row : kCodecTable) {
    if ((*MakeCodec(row.spec))->route().group == 0) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecTargetsTest, testing::ValuesIn(RowsWithoutGroups()),
                         CodecRowName);

}  // namespace
}  // namespace inccl::test
