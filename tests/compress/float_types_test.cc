// SPDX-License-Identifier: Apache-2.0
#include "compress/float_types.h"

#include <bit>
#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "support/fp_oracle.h"

namespace inccl {
namespace {

template <class Format, DataType kType>
struct Case {
  using Float = Format;
  static constexpr DataType type = kType;
  static constexpr uint32_t codes = 1u << (8 * sizeof(typename Format::Code));
};

template <class C>
class FloatTypes : public testing::Test {};
using Cases =
    testing::Types<Case<Fp16, DataType::kFloat16>, Case<Bf16, DataType::kBfloat16>,
                   Case<Fp8E4m3, DataType::kFloat8E4M3>, Case<Fp8E5m2, DataType::kFloat8E5M2>>;
TYPED_TEST_SUITE(FloatTypes, Cases);

template <class C>
float Decode(uint32_t code) {
  return C::Float::Decode(static_cast<typename C::Float::Code>(code));
}

template <class C>
void ExpectEncodes(float value) {
  const uint32_t code = C::Float::Encode(value);
  EXPECT_EQ(code, test::NarrowCode(C::type, value)) << fmt::format("{} = {:a}", value, value);
}

TYPED_TEST(FloatTypes, EveryCodeDecodesToItsValue) {
  for (uint32_t code = 0; code < TypeParam::codes; ++code) {
    const double expected = test::NarrowValue(TypeParam::type, code);
    const float value = Decode<TypeParam>(code);
    ASSERT_EQ(std::isnan(value), std::isnan(expected)) << code;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << code;
    if (!std::isnan(expected)) {
      ASSERT_EQ(static_cast<double>(value), expected) << code;
    }
  }
}

TYPED_TEST(FloatTypes, EveryNumberSurvivesAndNanStaysNan) {
  for (uint32_t code = 0; code < TypeParam::codes; ++code) {
    const uint32_t again = TypeParam::Float::Encode(Decode<TypeParam>(code));
    if (test::IsNanCode(TypeParam::type, code)) {
      ASSERT_TRUE(test::IsNanCode(TypeParam::type, again)) << code;
      ASSERT_EQ(again >> (8 * sizeof(typename TypeParam::Float::Code) - 1),
                code >> (8 * sizeof(typename TypeParam::Float::Code) - 1));
    } else {
      ASSERT_EQ(again, code);
    }
  }
}

// Everything that rounding distinguishes: the numbers, the points halfway between neighbours (the
// last also between the largest number and its would-be successor), and the fp32 values beside
// them. Half of a narrow type's codes have the sign.
TYPED_TEST(FloatTypes, HalfwayPointsAndTheirNeighboursRoundToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint32_t code = 0; code < TypeParam::codes / 2; ++code) {
    const float value = Decode<TypeParam>(code);
    if (!std::isfinite(value)) break;
    const double next = test::NarrowValue(TypeParam::type, code + 1);
    const double step = std::isfinite(next)
                            ? next - value
                            : value - static_cast<double>(Decode<TypeParam>(code - 1));
    const double middle = value + step / 2;
    for (const double center : {static_cast<double>(value), middle}) {
      const auto point = static_cast<float>(center);
      for (const float around :
           {std::nextafter(point, -infinity), point, std::nextafter(point, infinity)}) {
        ExpectEncodes<TypeParam>(around);
        ExpectEncodes<TypeParam>(-around);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

TYPED_TEST(FloatTypes, ExtremesOfFp32) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {0.0f, Limits::denorm_min(), 3 * Limits::denorm_min(), Limits::min(),
                            Limits::max(), Limits::infinity(), 1e30f, 1e-30f}) {
    ExpectEncodes<TypeParam>(value);
    ExpectEncodes<TypeParam>(-value);
  }
}

TYPED_TEST(FloatTypes, EveryKindOfNanGivesNan) {
  for (const uint32_t payload :
       {1u, 0x1000u, 0x2000u, 0x200000u, 0x400000u, 0x400001u, 0x7FFFFFu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t code =
          TypeParam::Float::Encode(std::bit_cast<float>(sign | 0x7F800000u | payload));
      EXPECT_TRUE(test::IsNanCode(TypeParam::type, code)) << payload;
      EXPECT_EQ(code >> (8 * sizeof(typename TypeParam::Float::Code) - 1), sign >> 31);
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(TypeParam::Float::Encode(nan), test::QuietNan(TypeParam::type));
}

// Values from the standards, so that oracle and code cannot be wrong together.
TEST(FloatTypesConstants, Landmarks) {
  static_assert(Fp16::Decode(0x3C00) == 1.0f && Fp16::Decode(0x7BFF) == 65504.0f);
  static_assert(Fp16::Decode(0x0001) == 0x1p-24f && Fp16::Encode(65520.0f) == 0x7C00);
  static_assert(Bf16::Decode(0x3F80) == 1.0f && Bf16::Encode(1.00390625f) == 0x3F80);
  static_assert(Fp8E4m3::Decode(0x7E) == 448.0f && Fp8E4m3::Decode(0x01) == 0x1p-9f);
  static_assert(Fp8E4m3::Encode(464.0f) == 0x7E && Fp8E4m3::Encode(465.0f) == 0x7F);
  static_assert(Fp8E5m2::Decode(0x7B) == 57344.0f && Fp8E5m2::Decode(0x01) == 0x1p-16f);
  static_assert(Fp8E5m2::Encode(61439.0f) == 0x7B && Fp8E5m2::Encode(61440.0f) == 0x7C);
  EXPECT_EQ(test::NarrowValue(DataType::kFloat8E4M3, 0x7E), 448.0);
  EXPECT_EQ(test::NarrowValue(DataType::kFloat8E5M2, 0x7B), 57344.0);
  EXPECT_EQ(test::NarrowValue(DataType::kFloat16, 0x7BFF), 65504.0);
  EXPECT_EQ(test::NarrowValue(DataType::kBfloat16, 0x7F7F), 0x1.FEp127);
}

}  // namespace
}  // namespace inccl
