// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set against the scalar reference, bit for bit: every number of elements, one
// and several scales, elements that are no numbers or larger than they should be.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/kernels/published_kernels.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::qsgd {
namespace {

class QsgdKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetSimdTarget(GetParam()).ok());
    ASSERT_EQ(SimdTargetName(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(SetSimdTarget("best").ok()); }

  float AnyFloat() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecial[] = {0.0f,      -0.0f,      1.0f,       -1.0f,        1.5f,   -3e38f,
                                  kInfinity, -kInfinity, 0x1p-149f,  -0x1p-130f,   0.999f, 1e-20f,
                                  NAN,       -NAN,       0x1.8p-24f, 0x1.fffffep0f};
    if (rng_.Below(4) == 0) return kSpecial[rng_.Below(std::size(kSpecial))];
    if (rng_.Below(9) == 0) return std::bit_cast<float>(static_cast<uint32_t>(rng_.Next()));
    return static_cast<float>(std::ldexp(2 * rng_.Uniform() - 1, -static_cast<int>(rng_.Below(9))));
  }

  const Kernels& reference_ = ScalarKernels();
  Rng rng_{test::TestSeed()};
};

// Elements of one superblock, aligned by chance.
struct Elements {
  float memory[kSuperblock + 1];
  float* x = memory;
  uint8_t index[kSuperblock];
  uint32_t sums[kSuperblock];
  double by_scale[kMostScales] = {};
};

TEST_P(QsgdKernelsTest, CodesAndValues) {
  for (uint32_t count = 1; count <= kSuperblock; ++count) {
    SCOPED_TRACE(count);
    Elements e;
    e.x = e.memory + rng_.Below(2);
    const uint32_t levels = (1u << (1 + rng_.Below(16))) - 1;
    const size_t scales = 1 + rng_.Below(kMostScales);
    const bool poisoned = rng_.Below(8) == 0;
    for (size_t k = 0; k < scales; ++k) {
      e.by_scale[k] = std::ldexp(levels * (1 + rng_.Uniform()), 2 * static_cast<int>(k));
    }
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      e.x[i] = AnyFloat();
      e.index[i] = static_cast<uint8_t>(rng_.Below(scales));
      e.sums[i] = static_cast<uint32_t>(rng_.Below(1u << 30));
    }
    const ScaleChoice choice{scales == 1 ? nullptr : e.index, scales, e.by_scale};
    const CodeArgs args{e.x, static_cast<uint32_t>(rng_.Next()), levels, choice};
    Elements expected = e, found = e;
    reference_.add_codes(args, count, expected.sums);
    BestKernels().add_codes(args, count, found.sums);
    ASSERT_EQ(std::memcmp(found.sums, expected.sums, count * sizeof(uint32_t)), 0);
    for (uint32_t i = 0; i < count; ++i) ASSERT_LE(found.sums[i] - e.sums[i], 2 * levels);

    if (poisoned) e.by_scale[0] = std::numeric_limits<double>::quiet_NaN();
    float y[kSuperblock], values[kSuperblock];
    const auto zero = static_cast<uint32_t>(rng_.Below(1u << 30));
    reference_.decode(e.sums, zero, choice, count, values);
    BestKernels().decode(e.sums, zero, choice, count, y);
    ASSERT_EQ(std::memcmp(y, values, count * sizeof(float)), 0);
  }
}

TEST_P(QsgdKernelsTest, FinestScaleAndLargestMagnitude) {
  for (uint32_t count = 1; count <= kSuperblock; ++count) {
    SCOPED_TRACE(count);
    const size_t scales = 1 + rng_.Below(kMostScales);
    const uint32_t levels = (1u << (1 + rng_.Below(8))) - 1;
    double factor[kMostScales] = {};
    const bool zeros = rng_.Below(8) == 0;  // a window of zeros
    for (size_t k = 0; k < scales && !zeros; ++k) {
      factor[k] = levels * std::ldexp(1.0, 3 * static_cast<int>(k));
    }
    float x[kSuperblock];
    uint8_t expected[kSuperblock], found[kSuperblock];
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      x[i] = AnyFloat();
      expected[i] = found[i] = static_cast<uint8_t>(rng_.Below(scales));
    }
    const ScaleChoice choice{nullptr, scales, factor};
    reference_.finest(x, choice, levels, count, expected);
    BestKernels().finest(x, choice, levels, count, found);
    ASSERT_EQ(std::memcmp(found, expected, count), 0);
    ASSERT_EQ(BestKernels().largest(x, count), reference_.largest(x, count));
    for (float& value : x) value = std::isfinite(value) ? value : 0.5f;
    ASSERT_EQ(BestKernels().largest(x, count), reference_.largest(x, count));
  }
}

TEST_P(QsgdKernelsTest, Fields) {
  for (uint32_t count = 1; count <= kSuperblock; ++count) {
    SCOPED_TRACE(count);
    uint16_t fields[kSuperblock] = {}, narrow[kSuperblock], expected_narrow[kSuperblock];
    uint32_t sums[kSuperblock], expected[kSuperblock];
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      if (i < count) fields[i] = static_cast<uint16_t>(rng_.Next());
      sums[i] = expected[i] = static_cast<uint32_t>(rng_.Below(1u << 16));
    }
    reference_.narrow(sums, count, expected_narrow);
    BestKernels().narrow(sums, count, narrow);
    ASSERT_EQ(std::memcmp(narrow, expected_narrow, count * sizeof(uint16_t)), 0);
    const uint32_t largest = reference_.add_fields(fields, count, expected);
    ASSERT_EQ(BestKernels().add_fields(fields, count, sums), largest);
    ASSERT_EQ(std::memcmp(sums, expected, count * sizeof(uint32_t)), 0);
  }
}

TEST_P(QsgdKernelsTest, BytesOfEveryWidth) {
  constexpr size_t kSlack = 16;
  for (uint32_t width = 1; width <= 8; ++width) {
    SCOPED_TRACE(width);
    for (int round = 0; round < 20; ++round) {
      uint8_t fields[kSuperblock], back[kSuperblock];
      for (uint8_t& field : fields) field = static_cast<uint8_t>(rng_.Below(1u << width));
      const size_t length = FieldBytes(kSuperblock, width);
      std::vector<std::byte> expected(length), packed(length + 2 * kSlack, std::byte{0xA5});
      PackFields(fields, kSuperblock, width, expected.data());
      BestKernels().pack_bytes(fields, width, packed.data());
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), length), 0);
      for (size_t i = length + kSlack; i < packed.size(); ++i) {
        ASSERT_EQ(packed[i], std::byte{0xA5}) << "written beyond the slack, at " << i;
      }
      for (std::byte& slack : std::span(packed).subspan(length)) slack = std::byte{0xFF};
      BestKernels().unpack_bytes(packed.data(), width, back);
      ASSERT_EQ(std::memcmp(back, fields, kSuperblock), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, QsgdKernelsTest, testing::ValuesIn(SimdTargets()),
                         [](const auto& target) { return target.param; });

}  // namespace
}  // namespace inccl::qsgd
