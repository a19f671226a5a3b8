// SPDX-License-Identifier: Apache-2.0
//
// The constants and the integer arithmetic of the compressed format: scale codes, widths, and the
// hashes for rounding. docs/format.md is the authority; all arithmetic here is exact.
#ifndef INCCL_COMPRESS_HBI_FORMAT_H_
#define INCCL_COMPRESS_HBI_FORMAT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/rng.h"
#include "compress/codec.h"

namespace inccl::hbi {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian streams");

inline constexpr uint32_t kBlocks = kSuperblock / kBlock;  // blocks (scale codes) of a superblock
inline constexpr uint32_t kMaxLevels = 4095;               // the largest K
inline constexpr uint32_t kFieldLimit = 65536;             // limit of 2 n K

// ---------------------------------------------------------------- scale codes
// Code c of a block stands for M = kMantissa[q & 3] * 2^(q >> 2), q = QuarterOctaves(c): quarter
// octaves from 2^-34 to 2^16, steps of four octaves below (to 2^-98) and above (to 2^128).
inline constexpr uint8_t kZeroCode = 0;    // every element is zero
inline constexpr uint8_t kLastCode = 245;  // M = 2^128; larger codes except kPoison are reserved
inline constexpr uint8_t kPoison = 255;    // an element is not finite
inline constexpr int kMinQuarters = -392;  // QuarterOctaves(1)
inline constexpr int kLowQuarters = -136;  // QuarterOctaves(17)
inline constexpr int kHighQuarters = 64;   // QuarterOctaves(217)
inline constexpr uint32_t kMantissaBits[4] = {0x3f800000, 0x3f9837f0, 0x3fb504f3, 0x3fd744fd};
inline constexpr uint32_t kInfinityBits = 0x7f800000;

constexpr int QuarterOctaves(int code) {
  if (code <= 17) return kMinQuarters + 16 * (code - 1);
  if (code <= 217) return kLowQuarters + (code - 17);
  return kHighQuarters + 16 * (code - 217);
}

constexpr bool IsReserved(uint8_t code) { return code > kLastCode && code != kPoison; }

// The smallest code whose M is >= the fp32 magnitude with these bits (sign cleared).
constexpr uint8_t CodeOfMagnitude(uint32_t bits) {
  if (bits == 0) return kZeroCode;
  if (bits >= kInfinityBits) return kPoison;
  const uint32_t mantissa = bits & 0x7fffff;
  int q = 4 * (static_cast<int>(bits >> 23) - 127);
  for (const uint32_t threshold : kMantissaBits) q += mantissa > (threshold & 0x7fffff) ? 1 : 0;
  // Three linear pieces; the outer ones round up to steps of 16 quarter octaves.
  const int low = std::max(1, 1 + ((q - kMinQuarters + 15) >> 4));
  const int middle = 17 + q - kLowQuarters;
  const int high = 217 + ((q - kHighQuarters + 15) >> 4);
  return static_cast<uint8_t>(std::min(std::max(low, middle), high));
}

// M of a code in 1..kLastCode, exact.
double Magnitude(int code);

// ---------------------------------------------------------------- widths
// Bits of a field for the sum of `contributions` codes of k levels.
constexpr uint32_t Width(uint32_t contributions, uint32_t k) {
  return static_cast<uint32_t>(std::bit_width(2 * contributions * k));
}
// Bytes of a superblock of fields of this width.
constexpr uint32_t PackedBytes(uint32_t width) { return kSuperblock / 8 * width; }

// ---------------------------------------------------------------- rounding
// Hash of a 32-bit counter: lowbias32 (Wellons, "Prospecting for hash functions", 2018).
constexpr uint32_t LowBias32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= x >> 15;
  x *= 0x846ca68b;
  x ^= x >> 16;
  return x;
}

// The purpose of a hash; each purpose has its own hashes.
enum class Salt : uint64_t { kSum = 0, kResult = 1, kSigns = 2, kGroups = 3 };

// The counter of the first hash of the block with this index. Hash j of a block (0 <= j < 16) is
// LowBias32(counter + j); its low half belongs to element j, its high half to element j + 16.
constexpr uint32_t HashCounter(uint64_t seed, uint64_t step, uint64_t block,
                               Salt salt = Salt::kSum) {
  const uint64_t key =
      Mix64(seed ^ Mix64(step ^ Mix64((block >> 28) ^ (static_cast<uint64_t>(salt) << 32))));
  return static_cast<uint32_t>(key + (block << 4));
}

// The offset that rank i of n adds to the shared hash, modulo 65536.
constexpr uint16_t RankShift(int rank, int nranks) {
  return static_cast<uint16_t>((uint64_t{65536} * static_cast<uint32_t>(rank)) /
                               static_cast<uint32_t>(nranks));
}

inline constexpr uint32_t kRoundHalfUp = 0x8000;  // the offset that rounds to nearest

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_FORMAT_H_
