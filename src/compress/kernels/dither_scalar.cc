// SPDX-License-Identifier: Apache-2.0
//
// The scalar reference of docs/codecs.md: one element at a time.
#include <algorithm>
#include <bit>
#include <cmath>

#include "compress/codec.h"
#include "compress/hbi/format.h"
#include "compress/kernels/dither_kernels.h"

namespace inccl::dither {
namespace {

void Squares(const float* x, size_t block, double* sums) {
  for (size_t b = 0; b < kSuperblock; b += block) {
    double partial[kPartials] = {};
    for (size_t i = 0; i < block; ++i) {
      const auto value = static_cast<double>(x[b + i]);
      partial[i % kPartials] += value * value;
    }
    for (size_t n = kPartials / 2; n > 0; n /= 2) {
      for (size_t i = 0; i < n; ++i) partial[i] += partial[i + n];
    }
    sums[b / block] = partial[0];
  }
}

uint32_t Linear(float scaled, uint32_t levels, uint32_t hash) {
  const auto top = static_cast<float>(levels);
  const float value = scaled < top ? scaled : top;
  const auto below = static_cast<uint32_t>(value);
  const float random = static_cast<float>(hash >> 8) * 0x1p-24f;
  return below + (random < value - static_cast<float>(below) ? 1 : 0);
}

// Adding random bits to the mantissa carries into the exponent as often as it should round up.
uint32_t Power(float scaled, uint32_t levels, uint32_t hash) {
  const float value = scaled < 1.0f ? scaled : 1.0f;
  const float lowest = std::bit_cast<float>((128 - levels) << 23);  // of the first level
  if (value < lowest) {
    const float random = static_cast<float>(hash >> 8) * 0x1p-24f;
    return random < value * std::bit_cast<float>((126 + levels) << 23) ? 1 : 0;
  }
  return ((std::bit_cast<uint32_t>(value) + (hash >> 9)) >> 23) - 127 + levels;
}

void Encode(const float* x, uint32_t random, const Levels& levels, const float* factors,
            size_t block, uint8_t* codes) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const float scaled = std::fabs(x[i]) * factors[i / block];
    const uint32_t hash = hbi::LowBias32(random + i);
    const uint32_t level =
        levels.powers ? Power(scaled, levels.count, hash) : Linear(scaled, levels.count, hash);
    codes[i] =
        static_cast<uint8_t>(std::signbit(x[i]) ? levels.count - level : levels.count + level);
  }
}

float LevelOf(int32_t code, const Levels& levels) {
  const int32_t level = code - static_cast<int32_t>(levels.count);
  if (!levels.powers) return static_cast<float>(level);
  if (level == 0) return 0;
  const uint32_t exponent = 127 - levels.count + static_cast<uint32_t>(std::abs(level));
  const float power = std::bit_cast<float>(exponent << 23);
  return level < 0 ? -power : power;
}

uint32_t Add(const uint8_t* codes, const Levels& levels, const float* units, size_t block,
             bool first, float* sum) {
  if (first) std::fill_n(sum, kSuperblock, 0.0f);
  uint32_t largest = 0;
  for (size_t i = 0; i < kSuperblock; ++i) {
    largest = std::max<uint32_t>(largest, codes[i]);
    sum[i] += LevelOf(codes[i], levels) * units[i / block];
  }
  return largest;
}

void NonZero(const uint8_t* codes, uint32_t zero, uint64_t bits[4]) {
  std::fill_n(bits, 4, uint64_t{0});
  for (size_t i = 0; i < kSuperblock; ++i) {
    if (codes[i] != zero) bits[i / 64] |= uint64_t{1} << i % 64;
  }
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {Squares, Encode, Add, NonZero};
  return kKernels;
}

}  // namespace inccl::dither
