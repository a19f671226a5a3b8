// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/reference_rings.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace inccl::tools {
namespace {

constexpr double kE4M3Max = 448.0;
constexpr int kE4M3MaxExponent = 8;   // 448 = 1.75 * 2^8
constexpr int kE4M3MinExponent = -6;  // of normal numbers
constexpr int kE4M3MantissaBits = 3;
constexpr int kE8M0Limit = 127;

double RoundToE4M3(double x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), kE4M3MinExponent);
  const double grid = std::ldexp(1.0, exponent - kE4M3MantissaBits);
  return std::clamp(std::nearbyint(x / grid) * grid, -kE4M3Max, kE4M3Max);
}

}  // namespace

float RoundToBf16(float x) {
  if (std::isnan(x)) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}

void RoundToMxfp8(std::span<double> block) {
  double top = 0;
  for (const double x : block) top = std::max(top, std::fabs(x));
  if (top == 0) return;
  const int exponent = std::clamp(std::ilogb(top) - kE4M3MaxExponent, -kE8M0Limit, kE8M0Limit);
  for (double& x : block) x = std::ldexp(RoundToE4M3(std::ldexp(x, -exponent)), exponent);
}

std::vector<float> Bf16Ring(std::span<const std::vector<float>> ranks) {
  std::vector<float> sum = ranks[0];
  for (float& x : sum) x = RoundToBf16(x);
  for (const std::vector<float>& rank : ranks.subspan(1)) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = RoundToBf16(sum[i] + rank[i]);
  }
  return sum;
}

std::vector<float> Mxfp8Ring(std::span<const std::vector<float>> ranks) {
  const size_t count = ranks[0].size();
  std::vector<float> sum(count);
  double block[kMxBlock];
  for (size_t begin = 0; begin < count; begin += kMxBlock) {
    const size_t length = std::min<size_t>(kMxBlock, count - begin);
    std::fill(block, block + length, 0.0);
    for (const std::vector<float>& rank : ranks) {
      for (size_t i = 0; i < length; ++i) block[i] += double{rank[begin + i]};
      RoundToMxfp8(std::span<double>(block, length));
    }
    for (size_t i = 0; i < length; ++i) sum[begin + i] = static_cast<float>(block[i]);
  }
  return sum;
}

}  // namespace inccl::tools
