// SPDX-License-Identifier: Apache-2.0
//
// The constants and the integer arithmetic of the compressed format, version 3: scale codes,
// widths, the hashes for rounding, and what is done to one element. docs/format.md is the
// authority; all arithmetic here is exact.
#ifndef INCCL_COMPRESS_HBI_FORMAT_H_
#define INCCL_COMPRESS_HBI_FORMAT_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "base/rng.h"
#include "compress/codec.h"

namespace inccl::hbi {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian streams");

inline constexpr uint32_t kFormatVersion = 3;  // ranks compare it together with the specification
inline constexpr uint32_t kBlocks = kSuperblock / kBlock;  // blocks (scale codes) of a superblock
inline constexpr uint32_t kMaxLevels = 4095;               // the largest K
inline constexpr uint32_t kFieldLimit = 65536;             // limit of 2 n K

// ---------------------------------------------------------------- scale codes
// Code c of a block stands for M = kFifthBits[q mod 5] * 2^floor(q / 5), q = FifthOctaves(c):
// fifths of an octave from 2^-100 to 2^128.
inline constexpr uint32_t kZeroCode = 0;       // every element is zero
inline constexpr uint32_t kLastCode = 1141;    // M = 2^128
inline constexpr uint32_t kPoison = 1142;      // an element is not finite
inline constexpr uint32_t kTableCodes = 1280;  // more than any code of any word, even of a bad one
inline constexpr int kFirstFifth = -500;       // of code 1
inline constexpr std::array<uint32_t, 5> kFifthBits = {0x3f800000, 0x3f93088c, 0x3fa8e5a3,
                                                       0x3fc20300, 0x3fdedc67};
inline constexpr uint32_t kInfinityBits = 0x7f800000;

constexpr int FifthOctaves(uint32_t code) { return static_cast<int>(code) - 1 + kFirstFifth; }

// The smallest code whose M is >= the fp32 magnitude with these bits (sign cleared).
constexpr uint16_t CodeOfMagnitude(uint32_t bits) {
  if (bits == 0) return kZeroCode;
  if (bits >= kInfinityBits) return kPoison;
  const uint32_t mantissa = bits & 0x7fffff;
  int fifths = 5 * (static_cast<int>(bits >> 23) - 127);
  // A kernel cannot read an array of the host's, and nvcc makes a trap of it without a word.
  constexpr std::array<uint32_t, 5> kThresholds = kFifthBits;
  for (const uint32_t threshold : kThresholds) fifths += mantissa > (threshold & 0x7fffff);
  return static_cast<uint16_t>(fifths <= kFirstFifth ? 1 : fifths - kFirstFifth + 1);
}

// M of a code in 1..kLastCode, exact.
double Magnitude(uint32_t code);

// ---------------------------------------------------------------- widths
inline constexpr uint32_t kMostHalfBits = 32;  // half-bits

// The base B of a pair of values in a field of an odd number of bits; 0: there are no such pairs.
constexpr uint32_t PairBase(uint32_t width) {
  if (width % 2 == 0 || width < 5 || width > 15) return 0;
  return static_cast<uint32_t>(0xb55a2d160b05 >> 4 * (width - 5)) & 0xff;  // 5 11 22 45 90 181
}
// Half-bits of a field for the sum of `contributions` codes of k levels.
constexpr uint32_t Width(uint32_t contributions, uint32_t k) {
  const uint32_t most = 2 * contributions * k;
  const uint32_t width = 2 * static_cast<uint32_t>(std::bit_width(most));
  return width != 0 && PairBase(width - 1) > most ? width - 1 : width;
}
// Bytes of a superblock of fields of this width: 256 fields of width / 2 bits or, where the width
// is odd, 128 fields of `width` bits with two values each.
constexpr uint32_t PackedBytes(uint32_t width) { return kSuperblock / 16 * width; }

// Multiplies by 1 / PairBase: v / B = (v * times >> 16) >> shift for v < 2^width.
struct PairInverse {
  uint32_t times = 0, shift = 0;
};
constexpr PairInverse InverseOfBase(uint32_t width) {
  const uint32_t times = width == 5 ? 52429 : width <= 9 ? 47663 : width <= 13 ? 46604 : 46346;
  return {times, width / 2};
}

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

// A rank's 16-bit offset from the shared random r: r - ((r * ranks mod 2^16) * inverse >> 16) +
// add. The default is r itself.
struct Offsets {
  uint16_t ranks = 0, inverse = 0, add = 0;
};

// r goes to the middle of its n-th of the circle, so that the offsets of the n ranks are
// (j + 1/2) / n; with `unbiased` it stays.
constexpr Offsets OffsetsOf(int rank, int nranks, bool unbiased) {
  const uint16_t shift = RankShift(rank, nranks);
  if (unbiased) return {.add = shift};
  const auto n = static_cast<uint32_t>(nranks);
  return {.ranks = static_cast<uint16_t>(n),
          .inverse = static_cast<uint16_t>(65536 / n),
          .add = static_cast<uint16_t>(shift + 32768 / n)};
}

inline constexpr uint32_t kRoundHalfUp = 0x8000;  // the offset that rounds to nearest

// The multipliers for one number of levels, by scale code, and the choices of levels of a plan.

// A block is scaled for its own codes as if its largest magnitude were multiplied by this: fp32 of
// 2 K / (2 K + 1), since to nearest the last level is good for half a step beyond M; 1 where the
// rounding is stochastic.
inline float OwnScale(uint32_t k, bool unbiased) {
  const double levels = 2.0 * k;
  return k == 0 || unbiased ? 1.0f : static_cast<float>(levels / (levels + 1));
}

// factor: fp32 of 65536 K / M; step: fp32 of M / K; average: fp32 of M / (K n). The steps are at
// most FLT_MAX. All are 0 for codes without elements to code; the steps of kPoison are NaN.
struct LevelTable {
  float factor[kTableCodes];
  float step[kTableCodes];
  float average[kTableCodes];
  // OwnScale(K, ...).
  float own;
};

// A choice of levels for a superblock. A plan consists of indices into Planner::points().
struct Point {
  uint32_t cost = 0;                   // parts of a bit per element over the plan's hops
  uint16_t k = 0, k2 = 0;              // 0: not coded
  const LevelTable* sum = nullptr;     // table of k
  const LevelTable* result = nullptr;  // table of k2
  // Widths of fields in half-bits: of one contribution, of a complete sum, and of a result.
  uint8_t own_width = 0, sum_width = 0, result_width = 0;
};

// The arithmetic of one element (docs/format.md), shared by the scalar reference
// (kernels/scalar_kernels.cc) and the CUDA kernels (cuda/). The compiler must not contract products
// and sums (--fmad=false, -ffp-contract=off).

// Rounds to the nearest integer, ties to even; |v| < 2^31.
INCCL_HOST_DEVICE inline int32_t NearestInt(float v) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(v);
#else
  return static_cast<int32_t>(std::nearbyint(v));
#endif
}

// The 16-bit offset of element j (0 <= j < 32) of a block, from the hash that it shares with
// element j + 16 or j - 16.
constexpr uint32_t RoundingOffset(uint32_t hash, uint32_t j, const Offsets& offsets) {
  const uint32_t random = (j < 16 ? hash : hash >> 16) & 0xffff;
  const uint32_t beyond = (random * offsets.ranks & 0xffff) * offsets.inverse >> 16;
  return (random - beyond + offsets.add) & 0xffff;
}

// Rounds the fp32 product to a fixed-point integer, clamps it, adds the offset and drops the 16
// fraction bits. With a factor of 0 every value counts as zero.
INCCL_HOST_DEVICE inline uint32_t QuantizeElement(float x, float factor, uint32_t k,
                                                  uint32_t offset) {
  const float limit = factor == 0 ? 0.0f : static_cast<float>(k * 65536);
#ifdef __CUDA_ARCH__
  const float v = fminf(fmaxf(x * factor, -limit), limit);  // NaN becomes -limit
#else
  float v = x * factor;
  if (!(v > -limit)) v = -limit;
  if (v > limit) v = limit;
#endif
  return (static_cast<uint32_t>(NearestInt(v)) + offset + k * 65536) >> 16;
}

// Decodes a sum of codes in which `zero` stands for 0. If the step is NaN, the result has its bits;
// a product on a GPU would change them.
constexpr float DecodeElement(uint32_t field, uint32_t zero, float step) {
  if (step != step) return step;
  return static_cast<float>(static_cast<int16_t>(field - zero)) * step;
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_FORMAT_H_
