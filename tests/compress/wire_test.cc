// SPDX-License-Identifier: Apache-2.0
//
// The wire formats bf16, fp16, fp8 and mxfp8: payloads against their definitions, and what a call
// makes of them, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/float_types.h"
#include "support/seed.h"

namespace inccl {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// One rank's state of an all-reduce of fp32.
class Rank {
 public:
  Rank(const char* spec, int nranks, size_t count, ReduceOp op = ReduceOp::kSum)
      : codec_(*MakeCodec(spec)),
        state_(codec_->NewState()),
        range_{0, 0, static_cast<uint32_t>(count)},
        nranks_(nranks) {
    EXPECT_TRUE(state_->Begin({.op = op, .nranks = nranks, .rank = 0, .count = count}).ok());
  }

  Bytes Sum(const Floats& x) { return Fold({In(x)}, {Form::kSum, 1}); }
  // Of this rank's elements and the payloads of the others.
  Bytes Result(const Floats& x, const std::vector<Bytes>& others) {
    std::vector<Term> inputs = {In(x)};
    for (const Bytes& other : others) {
      inputs.push_back({{Form::kSum, 1}, Data(other), static_cast<uint32_t>(other.size())});
    }
    return Fold(inputs, {Form::kResult});
  }
  Floats Decode(const Bytes& result) {
    Floats out(range_.count);
    const Term input{{Form::kResult}, Data(result), static_cast<uint32_t>(result.size())};
    Term output{{Form::kOutput}, reinterpret_cast<std::byte*>(out.data()), 4 * range_.count};
    const Status status = state_->Combine(range_, {&input, 1}, {&output, 1});
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

 private:
  static std::byte* Data(const Bytes& bytes) {
    return reinterpret_cast<std::byte*>(const_cast<uint8_t*>(bytes.data()));
  }
  static Term In(const Floats& x) {
    return {{Form::kInput},
            reinterpret_cast<std::byte*>(const_cast<float*>(x.data())),
            static_cast<uint32_t>(4 * x.size())};
  }
  Bytes Fold(const std::vector<Term>& inputs, const Format& format) {
    Bytes out(codec_->MaxBytes(DataType::kFloat32, nranks_, range_.count));
    Term output{format, Data(out), static_cast<uint32_t>(out.size())};
    const Status status = state_->Combine(range_, inputs, {&output, 1});
    EXPECT_TRUE(status.ok()) << status.message();
    out.resize(output.bytes);
    return out;
  }

  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
  Range range_;
  int nranks_;
};

template <typename Small>
void ExpectCasts(const char* spec, const Floats& x, float largest) {
  const Bytes payload = Rank(spec, 2, x.size()).Sum(x);
  std::vector<typename Small::Code> codes(x.size());
  ASSERT_EQ(payload.size(), codes.size() * sizeof codes[0]);
  std::memcpy(codes.data(), payload.data(), payload.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const float limited =
        std::isfinite(x[i]) && std::fabs(x[i]) > largest ? std::copysign(largest, x[i]) : x[i];
    ASSERT_EQ(codes[i], Small::Encode(limited)) << spec << " of " << x[i];
  }
}

TEST(Wire, CastsRoundToNearestAndSaturateWhereTheySay) {
  Rng rng(test::TestSeed());
  Floats x = {0.0f, -0.0f, kInf, -kInf, kNan, 448, 449, 464, -480, 57344, 61440, 7e4f, -1e30f};
  for (int i = 0; i < 3000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.Next())));
  ExpectCasts<Bf16>("bf16", x, kInf);
  ExpectCasts<Fp16>("fp16", x, kInf);
  ExpectCasts<Fp8E4m3>("fp8", x, 448);
  ExpectCasts<Fp8E5m2>("fp8:format=e5m2", x, 57344);
}

// Two blocks of two elements each, at the end of a superblock: scales first.
TEST(Wire, Mxfp8BytesOfAnExample) {
  Floats x(34);
  x[0] = 1.0f;    // scale 2^(0 - 8): 119; 256 is 0x78
  x[1] = -0.75f;  // -192: 0xF4
  x[32] = 3.9f;   // scale 2^(1 - 8): 120; 499.2 saturates: 0x7E
  x[33] = 3e-3f;  // 0.384: between 0.375 and 0.40625: 0x2C
  const Bytes payload = Rank("mxfp8", 2, x.size()).Sum(x);
  ASSERT_EQ(payload.size(), 2u + 34u);
  EXPECT_EQ(payload[0], 119);
  EXPECT_EQ(payload[1], 120);
  EXPECT_EQ(payload[2], 0x78);
  EXPECT_EQ(payload[3], 0xF4);
  EXPECT_EQ(payload[34], 0x7E);
  EXPECT_EQ(payload[35], 0x2C);
}

// The definition, in doubles: value / scale rounded to `mantissa` bits above 2^lowest.
double Element(double x, int mantissa, int lowest, double largest) {
  if (x == 0) return 0;
  const double grid = std::ldexp(1.0, std::max(std::ilogb(x), lowest) - mantissa);
  return std::clamp(std::nearbyint(x / grid) * grid, -largest, largest);
}

TEST(Wire, Mxfp8IsItsDefinition) {
  Rng rng(test::TestSeed());
  Floats x(5000 + 7);
  for (size_t i = 0; i < x.size(); ++i) {
    const int exponent = static_cast<int>(i / 32 * 7 % 250) - 148;
    x[i] = static_cast<float>(std::ldexp(rng.Uniform() * 2 - 1, exponent));
    if (rng.Below(9) == 0) x[i] = 0;
  }
  for (const bool e4m3 : {true, false}) {
    Rank rank(e4m3 ? "mxfp8" : "mxfp8:format=e5m2", 2, x.size());
    const Floats decoded = rank.Decode(rank.Sum(x));  // one form of payload for both
    for (size_t b = 0; b < x.size(); b += 32) {
      const size_t end = std::min(x.size(), b + 32);
      double top = 0;
      for (size_t i = b; i < end; ++i) top = std::max(top, std::fabs(double{x[i]}));
      const int scale = std::max(top == 0 ? -127 : std::ilogb(top) - (e4m3 ? 8 : 15), -127);
      for (size_t i = b; i < end; ++i) {
        const double scaled = std::ldexp(double{x[i]}, -scale);
        const double element = e4m3 ? Element(scaled, 3, -6, 448) : Element(scaled, 2, -14, 57344);
        ASSERT_EQ(decoded[i], static_cast<float>(std::ldexp(element, scale))) << x[i] << " " << i;
      }
    }
  }
}

TEST(Wire, Mxfp8BlocksWithANonFiniteElementAreNan) {
  Floats x(96, 1.5f);
  x[40] = kInf;
  Rank rank("mxfp8", 2, x.size());
  const Bytes payload = rank.Sum(x);
  EXPECT_EQ(payload[1], 0xFF);
  const Floats decoded = rank.Decode(payload);
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(std::isnan(decoded[i]), i / 32 == 1) << i;
    EXPECT_TRUE(i / 32 == 1 || decoded[i] == 1.5f) << i;
  }
}

// Round(sum in fp32 of Round(x)), the own contribution included; of an average, Round(x / n).
TEST(Wire, OwnContributionsAreRoundedLikeOthers) {
  Rng rng(test::TestSeed());
  constexpr size_t kCount = 2500;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    std::vector<Floats> x(3, Floats(kCount));
    for (Floats& one : x) {
      for (float& e : one) e = static_cast<float>(rng.Uniform() * 2 - 1);
    }
    Rank rank("bf16", 3, kCount, op);
    const Bytes result = rank.Result(x[0], {rank.Sum(x[1]), rank.Sum(x[2])});
    const Floats decoded = rank.Decode(result);
    const float scale = op == ReduceOp::kAvg ? 1.0f / 3.0f : 1.0f;
    for (size_t i = 0; i < kCount; ++i) {
      const auto rounded = [](float f) { return Bf16::Decode(Bf16::Encode(f)); };
      const float sum =
          (rounded(x[0][i] * scale) + rounded(x[1][i] * scale)) + rounded(x[2][i] * scale);
      ASSERT_EQ(decoded[i], rounded(sum)) << i;
    }
  }
}

}  // namespace
}  // namespace inccl
