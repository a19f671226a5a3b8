// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "perf/support/element.h"
#include "support/seed.h"

namespace inccl::perf {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DataType kSmall[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4M3,
                               DataType::kFloat8E5M2};

uint32_t EncodeOne(DataType type, double value) {
  uint32_t bits = 0;
  EncodeFloats(type, std::span(&value, 1), &bits);
  return bits;
}

double DecodeOne(DataType type, uint64_t bits) {
  double value = 0;
  DecodeFloats(type, &bits, 1, &value);
  return value;
}

TEST(BenchElement, BitsFromTheStandards) {
  EXPECT_EQ(EncodeOne(DataType::kFloat16, 1.0), 0x3C00u);
  EXPECT_EQ(EncodeOne(DataType::kFloat16, -2.0), 0xC000u);
  EXPECT_EQ(EncodeOne(DataType::kFloat16, 65504), 0x7BFFu);
  EXPECT_EQ(EncodeOne(DataType::kFloat16, 65520), 0x7C00u);
  EXPECT_EQ(EncodeOne(DataType::kFloat16, 0x1p-24), 0x0001u);
  EXPECT_EQ(EncodeOne(DataType::kFloat16, 0x1p-14), 0x0400u);
  EXPECT_EQ(EncodeOne(DataType::kBfloat16, 1.0), 0x3F80u);
  EXPECT_EQ(EncodeOne(DataType::kBfloat16, -kInfinity), 0xFF80u);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E4M3, 1.0), 0x38u);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E4M3, 448), 0x7Eu);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E4M3, -1e9), 0xFEu);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E4M3, 0x1p-9), 0x01u);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E5M2, 57344), 0x7Bu);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E5M2, 1e9), 0x7Cu);
  EXPECT_EQ(EncodeOne(DataType::kFloat8E5M2, -0.0), 0x80u);
  EXPECT_TRUE(std::isnan(DecodeOne(DataType::kFloat8E4M3, 0x7F)));
  EXPECT_TRUE(std::isnan(DecodeOne(DataType::kFloat8E4M3, 0xFF)));
  EXPECT_TRUE(std::isnan(DecodeOne(DataType::kFloat8E5M2, 0x7D)));
  EXPECT_TRUE(std::isnan(DecodeOne(DataType::kFloat16, 0x7E00)));
  EXPECT_EQ(DecodeOne(DataType::kFloat8E5M2, 0xFC), -kInfinity);
  EXPECT_EQ(DecodeOne(DataType::kFloat32, 0x40490FDB), static_cast<double>(0x1.921fb6p1f));
}

TEST(BenchElement, EveryPatternSurvives) {
  for (const DataType type : kSmall) {
    for (uint32_t bits = 0; bits < 1u << (8 * SizeOf(type)); ++bits) {
      const double value = DecodeOne(type, bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(DecodeOne(type, EncodeOne(type, value))));
      } else {
        ASSERT_EQ(EncodeOne(type, value), bits) << Name(type);
      }
    }
  }
}

TEST(BenchElement, Bfloat16IsTheUpperHalfOfFloat32) {
  Rng rng(test::TestSeed());
  for (int i = 0; i < 10000; ++i) {
    const auto bits = static_cast<uint16_t>(rng.Next());
    const auto expected = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    if (std::isnan(expected)) continue;
    EXPECT_EQ(DecodeOne(DataType::kBfloat16, bits), expected);
  }
}

// Against a search for the nearest value over all patterns; on ties the even one.
TEST(BenchElement, RoundsToNearestEven) {
  Rng rng(test::TestSeed());
  for (const DataType type : kSmall) {
    if (SizeOf(type) != 1) continue;
    for (int i = 0; i < 2000; ++i) {
      // Sums of two values hit ties often.
      const double a = DecodeOne(type, rng.Below(256)), b = DecodeOne(type, rng.Below(256));
      const double value = (a + b) / 2;
      if (!std::isfinite(value)) continue;
      uint32_t best = 0;
      double distance = kInfinity;
      for (uint32_t bits = 0; bits < 256; ++bits) {
        const double candidate = DecodeOne(type, bits);
        if (!std::isfinite(candidate) || std::signbit(candidate) != std::signbit(value)) continue;
        const double here = std::fabs(candidate - value);
        if (here < distance || (here == distance && bits % 2 == 0)) {
          best = bits;
          distance = here;
        }
      }
      EXPECT_EQ(EncodeOne(type, value), best) << Name(type) << " " << value;
    }
  }
}

TEST(BenchElement, LimitsAreThoseOfTheFormats) {
  EXPECT_EQ(LimitsOf(DataType::kFloat16).largest, 65504);
  EXPECT_EQ(LimitsOf(DataType::kFloat16).tiny, 0x1p-24);
  EXPECT_EQ(LimitsOf(DataType::kFloat16).roundoff, 0x1p-11);
  EXPECT_EQ(LimitsOf(DataType::kBfloat16).roundoff, 0x1p-8);
  EXPECT_EQ(LimitsOf(DataType::kFloat8E4M3).largest, 448);
  EXPECT_EQ(LimitsOf(DataType::kFloat8E4M3).tiny, 0x1p-9);
  EXPECT_EQ(LimitsOf(DataType::kFloat8E5M2).largest, 57344);
  EXPECT_EQ(LimitsOf(DataType::kFloat32).roundoff, 0x1p-24);
  EXPECT_EQ(LimitsOf(DataType::kFloat64).roundoff, 0x1p-53);
}

TEST(BenchElement, NamesAreThoseOfNcclTests) {
  EXPECT_EQ(ParseDataType("float"), DataType::kFloat32);
  EXPECT_EQ(ParseDataType("float32"), DataType::kFloat32);
  EXPECT_EQ(ParseDataType("half"), DataType::kFloat16);
  EXPECT_EQ(ParseDataType("fp8_e5m2"), DataType::kFloat8E5M2);
  EXPECT_EQ(ParseDataType("fp16"), DataType::kFloat16);
  EXPECT_EQ(ParseDataType("fp32"), DataType::kFloat32);
  EXPECT_EQ(ParseDataType("fp64"), DataType::kFloat64);
  EXPECT_EQ(ParseDataType("bf16"), DataType::kBfloat16);
  EXPECT_EQ(ParseDataType("f8e4m3"), DataType::kFloat8E4M3);
  EXPECT_EQ(ParseDataType("f8e5m2"), DataType::kFloat8E5M2);
  EXPECT_EQ(ParseDataType("Float"), std::nullopt);
  EXPECT_EQ(ParseReduceOp("avg"), ReduceOp::kAvg);
  EXPECT_EQ(ParseReduceOp("mulsum"), std::nullopt);
  for (int i = 0; i < kDataTypes; ++i) {
    EXPECT_EQ(ParseDataType(TableName(static_cast<DataType>(i))), static_cast<DataType>(i));
  }
}

}  // namespace
}  // namespace inccl::perf
