// SPDX-License-Identifier: Apache-2.0
//
// The vector conversions against the scalar ones, bit for bit, on every target.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "compress/float_types.h"
#include "compress/kernels/convert.h"
#include "compress/reduce_targets.h"
#include "gtest/gtest.h"
#include "support/fp_oracle.h"
#include "support/seed.h"

namespace inccl {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4M3,
                               DataType::kFloat8E5M2};

uint32_t Encode(DataType type, float value) {
  switch (type) {
    case DataType::kFloat16: return Fp16::Encode(value);
    case DataType::kBfloat16: return Bf16::Encode(value);
    case DataType::kFloat8E4M3: return Fp8E4m3::Encode(value);
    default: return Fp8E5m2::Encode(value);
  }
}

uint32_t DecodeBits(DataType type, uint32_t code) {
  const auto code16 = static_cast<uint16_t>(code);
  const auto code8 = static_cast<uint8_t>(code);
  switch (type) {
    case DataType::kFloat16: return std::bit_cast<uint32_t>(Fp16::Decode(code16));
    case DataType::kBfloat16: return std::bit_cast<uint32_t>(Bf16::Decode(code16));
    case DataType::kFloat8E4M3: return std::bit_cast<uint32_t>(Fp8E4m3::Decode(code8));
    default: return std::bit_cast<uint32_t>(Fp8E5m2::Decode(code8));
  }
}

// fp32 values of every exponent, those that rounding distinguishes, and NaNs.
std::vector<float> Floats() {
  Rng rng(test::TestSeed());
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  for (uint32_t code = 0; code < 1u << 16; ++code) {  // halves of fp16 and their neighbours
    const uint32_t bits = DecodeBits(DataType::kFloat16, code);
    for (const uint32_t below : {0xFFFu, 0x1000u, 0x1001u}) {
      values.push_back(std::bit_cast<float>(bits | below));
    }
  }
  for (int i = 0; i < 200000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.Next())));
  }
  return values;
}

TEST(Convert, EveryCodeOnEveryTarget) {
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    for (const DataType type : kTypes) {
      const uint32_t codes = 1u << (8 * SizeOf(type));
      std::vector<uint16_t> in(codes);
      for (uint32_t code = 0; code < codes; ++code) test::StoreBits(type, in.data(), code, code);
      std::vector<float> out(codes);
      ToFloat(type, in.data(), out.data(), codes);
      for (uint32_t code = 0; code < codes; ++code) {
        ASSERT_EQ(std::bit_cast<uint32_t>(out[code]), DecodeBits(type, code))
            << hwy::TargetName(target) << " " << Name(type) << " " << code;
      }
    }
  }
}

TEST(Convert, RoundingOnEveryTarget) {
  const std::vector<float> in = Floats();
  std::vector<uint16_t> out(in.size());
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    for (const DataType type : kTypes) {
      FromFloat(type, in.data(), out.data(), in.size());
      for (size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(test::LoadBits(type, out.data(), i), Encode(type, in[i]))
            << hwy::TargetName(target) << " " << Name(type) << " "
            << std::bit_cast<uint32_t>(in[i]);
      }
    }
  }
}

// Every length around the vectors', at every offset of an element, writing nothing beyond.
TEST(Convert, LengthsAndOffsets) {
  Rng rng(test::TestSeed());
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    for (const DataType type : kTypes) {
      for (size_t n = 0; n <= 70; ++n) {
        const size_t from = rng.Below(5), to = rng.Below(5);
        std::vector<uint16_t> codes(80), again(80, 0xABCD);
        for (size_t i = 0; i < 80; ++i) test::StoreBits(type, codes.data(), i, rng.Next() & 0x3F);
        std::vector<float> floats(80, -7.0f);
        char* in = reinterpret_cast<char*>(codes.data()) + from * SizeOf(type);
        char* out = reinterpret_cast<char*>(again.data()) + to * SizeOf(type);
        ToFloat(type, in, floats.data() + to, n);
        FromFloat(type, floats.data() + to, out, n);
        for (size_t i = 0; i < n; ++i) {
          const uint32_t code = static_cast<uint32_t>(test::LoadBits(type, in, i));
          ASSERT_EQ(std::bit_cast<uint32_t>(floats[to + i]), DecodeBits(type, code));
          ASSERT_EQ(test::LoadBits(type, out, i), code);
        }
        ASSERT_EQ(floats[to + n], -7.0f) << hwy::TargetName(target) << " " << n;
        const std::vector<uint16_t> fresh(80, 0xABCD);
        ASSERT_EQ(std::memcmp(out + n * SizeOf(type),
                              reinterpret_cast<const char*>(fresh.data()) + (to + n) * SizeOf(type),
                              SizeOf(type)),
                  0);
      }
    }
  }
}

TEST(Convert, DoublesRoundToNearestEvenAndOverflowToInfinity) {
  const double max = std::numeric_limits<float>::max();
  const double half_up = 0x1.FFFFFFp127;  // halfway between the largest fp32 and 2^128
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<double, float>> cases = {
      {0.0, 0.0f},
      {-0.0, -0.0f},
      {1.0, 1.0f},
      {1 + 0x1p-24, 1.0f},
      {1 + 0x1.000001p-24, 1 + 0x1p-23f},
      {1 + 0x1.8p-23, 1 + 0x1p-22f},
      {max, std::numeric_limits<float>::max()},
      {std::nextafter(half_up, 0), std::numeric_limits<float>::max()},
      {half_up, infinity},
      {1e300, infinity},
      {-1e300, -infinity},
      {0x1p-149, 0x1p-149f},
      {0x1p-150, 0.0f},
      {0x1.000001p-150, 0x1p-149f},
      {1e-300, 0.0f},
      {std::numeric_limits<double>::infinity(), infinity},
  };
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    std::vector<double> in, back(cases.size());
    for (const auto& c : cases) in.push_back(c.first);
    std::vector<float> out(cases.size());
    ToFloat(DataType::kFloat64, in.data(), out.data(), in.size());
    FromFloat(DataType::kFloat64, out.data(), back.data(), out.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(cases[i].second))
          << hwy::TargetName(target) << " " << in[i];
      EXPECT_EQ(back[i], static_cast<double>(cases[i].second));
    }
    const double nan = std::numeric_limits<double>::quiet_NaN();
    ToFloat(DataType::kFloat64, &nan, out.data(), 1);
    EXPECT_TRUE(std::isnan(out[0]));
  }
}

TEST(Convert, Fp32IsACopy) {
  std::vector<uint32_t> in = {0x7F800001u, 0xFFC00000u, 1, 0x80000000u}, out(4), back(4);
  auto* floats = reinterpret_cast<float*>(out.data());
  ToFloat(DataType::kFloat32, in.data(), floats, 4);
  FromFloat(DataType::kFloat32, floats, back.data(), 4);
  EXPECT_EQ(out, in);
  EXPECT_EQ(back, in);
}

}  // namespace
}  // namespace inccl
