// SPDX-License-Identifier: Apache-2.0
//
// Selection on every instruction set against plain loops, bit for bit: every number of elements
// around whole vectors, at any alignment, elements that are no numbers, and in place.
#include "compress/kernels/select_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::select {
namespace {

class SelectKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetSimdTarget(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetSimdTarget("best").ok()); }

  float AnyFloat() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecial[] = {0.0f, -0.0f, 1.0f,      -1.0f,      0x1p-149f, -3e38f,
                                  NAN,  -NAN,  kInfinity, -kInfinity, 0x1p-126f};
    if (rng_.Below(3) == 0) return kSpecial[rng_.Below(std::size(kSpecial))];
    return std::bit_cast<float>(static_cast<uint32_t>(rng_.Next()));
  }

  Rng rng_{test::TestSeed()};
};

uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

TEST_P(SelectKernelsTest, Collects) {
  constexpr size_t kMost = 200;
  constexpr uint32_t kUntouched = 0xA5A5A5A5;
  for (size_t count = 0; count <= kMost; ++count) {
    for (int round = 0; round < 8; ++round) {
      SCOPED_TRACE(count);
      std::vector<float> x(rng_.Below(16) + count);
      for (float& value : x) value = AnyFloat();
      const float* const from = x.data() + (x.size() - count);  // at any alignment
      const auto first = static_cast<uint32_t>(rng_.Next());
      const int32_t limits[] = {-1, 0, 0x7FFFFFFF, 0x3F800000, 0x3F7FFFFF, 0x7F800000};
      const int32_t above =
          round < 6 ? limits[round] : static_cast<int32_t>(rng_.Below(uint64_t{1} << 31));
      std::vector<uint32_t> expected, expected_values;
      for (size_t i = 0; i < count; ++i) {
        if (static_cast<int32_t>(BitsOf(from[i]) & 0x7FFFFFFF) <= above) continue;
        expected.push_back(first + static_cast<uint32_t>(i));
        expected_values.push_back(BitsOf(from[i]));
      }
      for (const bool in_place : {false, true}) {
        std::vector<float> values(x.size() + 1, std::bit_cast<float>(kUntouched));
        std::vector<uint32_t> indices(count + 1, kUntouched);
        if (in_place) std::copy(x.begin(), x.end(), values.begin());
        float* const to = in_place ? values.data() + (x.size() - count) : values.data();
        const size_t n =
            BestKernels().collect(in_place ? to : from, count, above, first, {indices.data(), to});
        ASSERT_EQ(n, expected.size());
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(indices[i], expected[i]);
          ASSERT_EQ(BitsOf(to[i]), expected_values[i]);
        }
        ASSERT_EQ(indices.back(), kUntouched);
        ASSERT_EQ(BitsOf(values.back()), kUntouched);
      }
    }
  }
}

// The sums of the header, which are the same bits everywhere, and close to those of a plain loop.
TEST_P(SelectKernelsTest, Moments) {
  for (size_t count = 0; count <= 300; ++count) {
    SCOPED_TRACE(count);
    std::vector<float> x(rng_.Below(16) + count);
    for (float& value : x) {
      value = static_cast<float>(
          std::ldexp(2 * rng_.Uniform() - 1, static_cast<int>(rng_.Below(40)) - 20));
    }
    if (rng_.Below(8) == 0 && count > 0) x.back() = AnyFloat();
    const float* const from = x.data() + (x.size() - count);
    const double least = rng_.Below(2) == 0 ? 0 : rng_.Uniform();
    double sum = 0, squares = 0, size = 0;
    for (size_t i = 0; i < count; ++i) {
      const double excess = std::fabs(static_cast<double>(from[i])) - least;
      sum += excess;
      squares += excess * excess;
      size += std::fabs(excess);
    }
    const select::Moments found = BestKernels().moments(from, count, least),
                          expected = ScalarKernels().moments(from, count, least);
    if (std::isfinite(squares)) {
      EXPECT_NEAR(found.sum, sum, 1e-13 * size);
      EXPECT_NEAR(found.squares, squares, 1e-13 * squares);
      ASSERT_EQ(std::memcmp(&found, &expected, sizeof found), 0);
    } else {
      EXPECT_FALSE(std::isfinite(found.squares));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SelectKernelsTest, testing::ValuesIn(SimdTargets()),
                         [](const auto& target) { return target.param; });

}  // namespace
}  // namespace inccl::select
