// SPDX-License-Identifier: Apache-2.0
//
// Moves the packed fields of one superblock between memory and the registers of a warp. Lane l has
// elements 8 l to 8 l + 7. Of the superblock's 16 w bytes each lane joins a piece of 4 w bits: its
// eight fields of w / 2 bits or, with an odd w, four fields of two values (Pairs). The warp reads
// and writes memory in rows of 32 words, one word per lane, and moves words between rows and lanes
// by shuffles.
//
// `Warp` runs the lanes: by intrinsics on a GPU (device_warp.h), by an emulation in tests.
//   lane()            0 .. 31
//   Get(value, lane)  the value that `lane` (modulo 32) passed; all lanes call it together
// `width` is hbi::Width, 4 .. 32 half-bits, and equal in all lanes.
#ifndef INCCL_COMPRESS_CUDA_WARP_FIELDS_H_
#define INCCL_COMPRESS_CUDA_WARP_FIELDS_H_

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"

namespace inccl::cuda {

inline constexpr uint32_t kMaxRows = 4;   // 16-bit fields fill four
inline constexpr uint32_t kMaxReach = 5;  // words that 16 unaligned bytes can touch

// The fields of one lane.
struct Fields {
  uint32_t at[kLaneElements];
};

// The piece that a lane joins, and the lane that joins a piece. Four neighbours with the lower
// values of pairs and the next four with the upper ones share eight pieces: the lower lanes have
// the even ones.
INCCL_HOST_DEVICE inline uint32_t PieceOf(uint32_t lane, uint32_t width) {
  if (width % 2 == 0) return lane;
  return (lane & 24) | (lane & 3) << 1 | (lane >> 2 & 1);
}
INCCL_HOST_DEVICE inline uint32_t LaneOf(uint32_t piece, uint32_t width) {
  if (width % 2 == 0) return piece;
  return (piece & 24) | (piece >> 1 & 3) | (piece & 1) << 2;
}

// The layout of a superblock of one width in words.
struct Geometry {
  uint32_t width;
  uint32_t words;  // words of the superblock
  uint32_t rows;   // rows of 32 words; the last may be partial
  uint32_t reach;  // upper bound of the words that a piece touches
  uint32_t first;  // the first word that this lane's piece touches
  uint32_t shift;  // bit in that word at which this lane's piece starts

  INCCL_HOST_DEVICE Geometry(uint32_t w, uint32_t lane) : width(w), words(4 * w) {
    rows = (w + 7) / 8;
    // The largest bit in its first word at which a piece starts.
    const uint32_t beyond = w % 2 != 0 ? 28 : w % 4 != 0 ? 24 : w % 8 * 4;
    reach = (4 * w + beyond + 31) / 32;
    const uint32_t piece = PieceOf(lane, w);
    first = w * piece / 8;
    shift = w * piece % 8 * 4;
  }
};

INCCL_HOST_DEVICE inline uint32_t FunnelRight(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, shift);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
#endif
}

// Bits 32 to 63 of high:low after a left shift.
INCCL_HOST_DEVICE inline uint32_t FunnelLeft(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, shift);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << shift >> 32);
#endif
}

// Joins a lane's eight fields of `width` bits to a piece.
INCCL_HOST_DEVICE inline void Join(const Fields& fields, uint32_t width, uint32_t* string) {
  uint64_t half[2];
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t* f = fields.at + 4 * h;
    const uint32_t low = f[0] | f[1] << width, high = f[2] | f[3] << width;
    half[h] = low | uint64_t{high} << (2 * width);
  }
  // With w = 16 four fields fill 64 bits, so the halves stay separate.
  const uint64_t low = width == 16 ? half[0] : half[0] | half[1] << (4 * width);
  const uint64_t high = half[1] >> (64 - 4 * width);
  string[0] = static_cast<uint32_t>(low);
  string[1] = static_cast<uint32_t>(low >> 32);
  string[2] = static_cast<uint32_t>(high);
  string[3] = static_cast<uint32_t>(high >> 32);
}

// Splits a piece into a lane's eight fields of `width` bits; ignores what is above.
INCCL_HOST_DEVICE inline Fields Split(const uint32_t* string, uint32_t width) {
  const uint64_t low = string[0] | uint64_t{string[1]} << 32;
  const uint64_t high = string[2] | uint64_t{string[3]} << 32;
  const uint64_t upper = width == 16 ? high : low >> (4 * width) | high << (64 - 4 * width);
  const uint32_t mask = (1u << width) - 1;
  Fields fields;
  for (uint32_t h = 0; h < 2; ++h) {
    const uint64_t half = h == 0 ? low : upper;
    const auto first = static_cast<uint32_t>(half),
               second = static_cast<uint32_t>(half >> (2 * width));
    uint32_t* f = fields.at + 4 * h;
    f[0] = first & mask;
    f[1] = first >> width & mask;
    f[2] = second & mask;
    f[3] = second >> width & mask;
  }
  return fields;
}

// Joins values to pairs and these to a piece of four fields. Lanes l and l ^ 4 have the lower and
// the upper values of the same eight pairs, and each makes four of them.
template <class Warp>
INCCL_HOST_DEVICE void JoinPairs(const Warp& warp, const Fields& fields, uint32_t width,
                                 uint32_t* string) {
  const bool upper = (warp.lane() & 4) != 0;
  const uint32_t base = hbi::PairBase(width);
  uint64_t piece = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t got = warp.Get(upper ? fields.at[i] : fields.at[4 + i], warp.lane() ^ 4);
    const uint32_t pair = upper ? got + base * fields.at[4 + i] : fields.at[i] + base * got;
    piece |= uint64_t{pair} << (i * width);
  }
  string[0] = static_cast<uint32_t>(piece);
  string[1] = static_cast<uint32_t>(piece >> 32);
  string[2] = string[3] = 0;
}

template <class Warp>
INCCL_HOST_DEVICE Fields SplitPairs(const Warp& warp, const uint32_t* string, uint32_t width) {
  const bool upper = (warp.lane() & 4) != 0;
  const uint32_t base = hbi::PairBase(width);
  const hbi::PairInverse inverse = hbi::InverseOfBase(width);
  const uint64_t piece = string[0] | uint64_t{string[1]} << 32;
  Fields fields;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t pair = static_cast<uint32_t>(piece >> (i * width)) & ((1u << width) - 1);
    const uint32_t high = (pair * inverse.times >> 16) >> inverse.shift;
    const uint32_t low = pair - high * base;
    const uint32_t got = warp.Get(upper ? low : high, warp.lane() ^ 4);
    fields.at[i] = upper ? got : low;
    fields.at[4 + i] = upper ? high : got;
  }
  return fields;
}

// Reads exactly the 16 w bytes at `in`, which is aligned to 4.
template <class Warp>
INCCL_HOST_DEVICE Fields Unpack(const Warp& warp, const uint8_t* in, uint32_t width) {
  const Geometry at(width, warp.lane());
  const auto* words = reinterpret_cast<const uint32_t*>(in);
  uint32_t row[kMaxRows];
  for (uint32_t r = 0; r < kMaxRows; ++r) {
    const uint32_t word = kWarp * r + warp.lane();
    row[r] = word < at.words ? words[word] : 0;
  }
  uint32_t touched[kMaxReach];
  for (uint32_t i = 0; i < kMaxReach; ++i) {
    touched[i] = 0;
    if (i >= at.reach) continue;
    const uint32_t word = at.first + i;
    for (uint32_t r = 0; r < kMaxRows; ++r) {
      if (r >= at.rows) continue;
      const uint32_t got = warp.Get(row[r], word);
      if (word / kWarp == r) touched[i] = got;
    }
  }
  uint32_t string[4];
  for (uint32_t i = 0; i < 4; ++i) string[i] = FunnelRight(touched[i], touched[i + 1], at.shift);
  return width % 2 == 0 ? Split(string, width / 2) : SplitPairs(warp, string, width);
}

// Writes exactly the 16 w bytes at `out`, which is aligned to 4. Fields have no bits beyond theirs,
// values of pairs are below their base.
template <class Warp>
INCCL_HOST_DEVICE void Pack(const Warp& warp, const Fields& fields, uint32_t width, uint8_t* out) {
  const Geometry at(width, warp.lane());
  uint32_t string[4], touched[kMaxReach];
  if (width % 2 == 0) {
    Join(fields, width / 2, string);
  } else {
    JoinPairs(warp, fields, width, string);
  }
  touched[0] = string[0] << at.shift;
  for (uint32_t i = 1; i < 4; ++i) touched[i] = FunnelLeft(string[i - 1], string[i], at.shift);
  touched[4] = FunnelLeft(string[3], 0, at.shift);
  // Gives floor(8 word / w) for words below 128: the product's error is below 1/64, and w <= 32.
  const uint32_t reciprocal = 65536 / width + 1;
  auto* words = reinterpret_cast<uint32_t*>(out);
  for (uint32_t r = 0; r < kMaxRows; ++r) {
    if (r >= at.rows) continue;
    const uint32_t word = kWarp * r + warp.lane();
    const uint32_t owner = 8 * word * reciprocal >> 16;  // piece that has the word's first bit
    const uint32_t index = word - width * owner / 8;     // index among the words it touches
    uint32_t value = 0;
    for (uint32_t i = 0; i < kMaxReach; ++i) {
      if (i >= at.reach) continue;
      const uint32_t got = warp.Get(touched[i], LaneOf(owner, width));
      if (index == i) value = got;
    }
    // The next pieces that begin in this word: two if w = 5, else one.
    for (uint32_t i = 1; i < 3; ++i) {
      if (i > (width == 5 ? 2u : 1u)) continue;
      const uint32_t got = warp.Get(touched[0], LaneOf(owner + i, width));
      if (width * (owner + i) < 8 * word + 8) value |= got;
    }
    if (word < at.words) words[word] = value;
  }
}

// Converts the eight elements of a lane to and from codes of K levels. Lane l has elements 8 l to
// 8 l + 7 of a superblock, and four lanes share a block. hbi/format.h has the arithmetic of one
// element.

inline constexpr uint32_t kLanesPerBlock = 4;

// How values are rounded: to nearest, or by the hash at the counter of the superblock's first block
// and the rank's offsets.
struct Rounding {
  uint32_t counter = 0;
  hbi::Offsets offsets = {};
  bool nearest = false;
};

// The bits of the largest magnitude in this lane's block.
template <class Warp>
INCCL_HOST_DEVICE uint32_t BlockMagnitude(const Warp& warp, const float* x) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    largest = largest < magnitude ? magnitude : largest;
  }
  for (uint32_t apart = 1; apart < kLanesPerBlock; apart *= 2) {
    const uint32_t other = warp.Get(largest, warp.lane() ^ apart);
    largest = largest < other ? other : largest;
  }
  return largest;
}

// The side word of the superblock, in all lanes; the blocks' largest magnitudes count `scale`
// times.
template <class Warp>
INCCL_HOST_DEVICE uint32_t SideWord(const Warp& warp, const float* x, float scale) {
  const float largest = std::bit_cast<float>(BlockMagnitude(warp, x));
  const uint32_t scaled = std::bit_cast<uint32_t>(largest * scale) & 0x7fffffff;
  const uint32_t code = hbi::CodeOfMagnitude(scaled);
  uint32_t top = code;
  for (uint32_t apart = kLanesPerBlock; apart < kWarp; apart *= 2) {
    const uint32_t other = warp.Get(top, warp.lane() ^ apart);
    top = top < other ? other : top;
  }
  const uint32_t least = hbi::LeastCode(top), bare = hbi::WordOfTop(top);
  const uint32_t below = top - (code < least ? least : code);
  uint32_t word = bare | hbi::BelowBits(bare, warp.lane() / kLanesPerBlock, below);
  for (uint32_t apart = kLanesPerBlock; apart < kWarp; apart *= 2) {
    word |= warp.Get(word, warp.lane() ^ apart);
  }
  if (top == hbi::kZeroCode) return hbi::kZeroWord;
  return top == hbi::kPoison ? hbi::kPoisonWord : word;
}

// The scale code of this lane's block.
template <class Warp>
INCCL_HOST_DEVICE uint32_t LaneCode(const Warp& warp, uint32_t word) {
  return hbi::CodeOf(word, warp.lane() / kLanesPerBlock);
}

// A hash serves two elements of a block, 16 apart, which belong to two lanes: each lane computes
// half of the eight hashes that both need.
template <class Warp>
INCCL_HOST_DEVICE void LaneHashes(const Warp& warp, uint32_t counter, uint32_t* hashes) {
  const uint32_t lane = warp.lane(), place = lane % kLanesPerBlock;
  const bool upper = place >= 2;
  const uint32_t first = counter + lane / kLanesPerBlock * 16 + place % 2 * 8 + (upper ? 4 : 0);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t mine = hbi::LowBias32(first + i);
    const uint32_t other = warp.Get(mine, lane ^ 2);
    hashes[i] = upper ? other : mine;
    hashes[4 + i] = upper ? mine : other;
  }
}

template <class Warp>
INCCL_HOST_DEVICE Fields Quantize(const Warp& warp, const float* x, float factor, uint32_t k,
                                  const Rounding& rounding) {
  uint32_t offsets[kLaneElements];
  if (rounding.nearest) {
    for (uint32_t& offset : offsets) offset = hbi::kRoundHalfUp;
  } else {
    LaneHashes(warp, rounding.counter, offsets);
    const uint32_t first = warp.lane() % kLanesPerBlock * kLaneElements;
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      offsets[i] = hbi::RoundingOffset(offsets[i], first + i, rounding.offsets);
    }
  }
  Fields fields;
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    fields.at[i] = hbi::QuantizeElement(x[i], factor, k, offsets[i]);
  }
  return fields;
}

INCCL_HOST_DEVICE inline void Decode(const Fields& fields, uint32_t zero, float step, float* y) {
  for (uint32_t i = 0; i < kLaneElements; ++i) {
    y[i] = hbi::DecodeElement(fields.at[i], zero, step);
  }
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_FIELDS_H_
