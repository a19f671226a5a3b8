// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/reference_rings.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"

namespace inccl::tools {
namespace {

// E4M3 from its bits, as the OCP 8-bit floating point specification tabulates it. Code 0x7F is NaN.
double E4M3(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >> 7 ? -magnitude : magnitude;
}

// The nearest code, ties to the even mantissa, by looking at all of them.
double NearestE4M3(double x) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const double here = std::fabs(E4M3(code) - x);
    const double there = std::fabs(E4M3(best) - x);
    if (here < there || (here == there && code % 2 == 0 && best % 2 != 0)) best = code;
  }
  return E4M3(best);
}

TEST(ReferenceRings, Bf16IsTheNearestOfItsNeighbours) {
  Rng rng(test::TestSeed());
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<uint32_t>(rng.Next());
    const float x = std::bit_cast<float>(bits);
    if (!std::isfinite(x)) continue;
    const uint32_t below = bits & 0xFFFF0000;
    const double low = std::bit_cast<float>(below);
    const uint32_t above = below + 0x10000;
    double high = std::bit_cast<float>(above);
    if (std::isinf(high)) high = std::copysign(0x1p128, high);
    const double down = std::fabs(x - low);
    const double up = std::fabs(high - x);
    const bool take_low = down < up || (down == up && (below >> 16) % 2 == 0);
    const uint32_t expected = take_low ? below : above;
    EXPECT_EQ(std::bit_cast<uint32_t>(RoundToBf16(x)), expected) << x;
  }
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);
  EXPECT_EQ(RoundToBf16(1.0f + 0x3p-8f), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(RoundToBf16(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
}

TEST(ReferenceRings, Mxfp8IsTheNearestCodeUnderTheSharedScale) {
  Rng rng(test::TestSeed());
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> block(kMxBlock);
    const int shift = static_cast<int>(rng.Below(200)) - 100;
    double top = 0;
    for (double& x : block) {
      x = std::ldexp(rng.Uniform() - 0.5, shift - static_cast<int>(rng.Below(20)));
      if (rng.Below(4) == 0) x = std::ldexp(E4M3(static_cast<int>(rng.Below(127))), shift - 9);
      // Halfway between codes.
      if (rng.Below(8) == 0) x = std::ldexp(2 * double(rng.Below(16)) + 1, shift - 6);
      top = std::fmax(top, std::fabs(x));
    }
    int exponent = -200;
    while (std::ldexp(1.0, exponent + 1) <= top) ++exponent;
    const double scale = std::ldexp(1.0, exponent - 8);
    std::vector<double> result = block;
    RoundToMxfp8(result);
    for (size_t i = 0; i < block.size(); ++i) {
      EXPECT_EQ(result[i], NearestE4M3(block[i] / scale) * scale) << block[i] << " of " << top;
    }
  }
}

TEST(ReferenceRings, Mxfp8ScaleStaysInItsRange) {
  std::vector<double> tiny = {std::ldexp(1.0, -140), 0.0, -std::ldexp(1.0, -136)};
  const std::vector<double> expected = {0.0, 0.0, -std::ldexp(1.0, -136)};
  RoundToMxfp8(tiny);
  EXPECT_EQ(tiny, expected);
  std::vector<double> zero(kMxBlock, 0.0);
  RoundToMxfp8(zero);
  EXPECT_EQ(zero, std::vector<double>(kMxBlock, 0.0));
}

TEST(ReferenceRings, RingsRoundAtEveryHop) {
  // 1 + 2^-8 + 2^-8 is 1 when each hop rounds, 1 + 2^-7 when only the end does.
  const std::vector<std::vector<float>> ranks = {{1.0f}, {0x1p-8f}, {0x1p-8f}};
  EXPECT_EQ(Bf16Ring(ranks), std::vector<float>{1.0f});
  // E4M3 has four significant bits: 16 + 1 + 1 stays 16.
  const std::vector<std::vector<float>> small = {{16.0f, 3.0f}, {1.0f, 0.0f}, {1.0f, 0.0f}};
  EXPECT_EQ(Mxfp8Ring(small), (std::vector<float>{16.0f, 3.0f}));
}

TEST(ReferenceRings, BlocksDoNotShareScalesAndTailsAreWhole) {
  std::vector<float> x(kMxBlock + 3, 0x1p-20f);
  x[0] = 448.0f;
  const std::vector<std::vector<float>> one = {x};
  const std::vector<float> sum = Mxfp8Ring(one);
  ASSERT_EQ(sum.size(), x.size());
  EXPECT_EQ(sum[0], 448.0f);
  EXPECT_EQ(sum[1], 0.0f);
  for (size_t i = kMxBlock; i < x.size(); ++i) EXPECT_EQ(sum[i], 0x1p-20f);
}

}  // namespace
}  // namespace inccl::tools
