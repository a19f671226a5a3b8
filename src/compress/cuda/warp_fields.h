// SPDX-License-Identifier: Apache-2.0
//
// Moves the packed fields of one superblock between memory and the registers of a warp. Lane l has
// fields 8 l to 8 l + 7, which are bytes w l to w l + w - 1 of the superblock's 32 w bytes. The
// warp reads and writes memory in rows of 32 words, one word per lane, and moves words between rows
// and lanes by shuffles.
//
// `Warp` runs the lanes: by intrinsics on a GPU (device_warp.h), by an emulation in tests.
//   lane()            0 .. 31
//   Get(value, lane)  the value that `lane` (modulo 32) passed; all lanes call it together
// `width` is 1 .. 16 and equal in all lanes.
#ifndef INCCL_COMPRESS_CUDA_WARP_FIELDS_H_
#define INCCL_COMPRESS_CUDA_WARP_FIELDS_H_

#include <cstdint>

#include "base/host_device.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"

namespace inccl::cuda {

inline constexpr uint32_t kMaxRows = 4;   // 16-bit fields fill four
inline constexpr uint32_t kMaxReach = 5;  // words that 16 unaligned bytes can touch

// The fields of one lane.
struct Fields {
  uint32_t at[kLaneElements];
};

// The layout of a superblock of one width in words.
struct Geometry {
  uint32_t width;
  uint32_t words;  // words of the superblock
  uint32_t rows;   // rows of 32 words; the last may be partial
  uint32_t reach;  // upper bound of the words that a lane's bytes touch
  uint32_t first;  // the first word that this lane's bytes touch
  uint32_t shift;  // bit in that word at which this lane's bytes start

  INCCL_HOST_DEVICE Geometry(uint32_t w, uint32_t lane) : width(w), words(8 * w) {
    rows = (w + 3) / 4;
    const uint32_t beyond = w % 2 != 0 ? 3 : w % 4;  // largest byte offset in the first word
    reach = (w + beyond + 3) / 4;
    first = w * lane / 4;
    shift = w * lane % 4 * 8;
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

// Joins a lane's fields to a bit string of 8 w bits.
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

// Splits a bit string into a lane's fields; ignores bits above 8 w.
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

// Reads exactly the 32 w bytes at `in`, which is aligned to 4.
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
  return Split(string, width);
}

// Writes exactly the 32 w bytes at `out`, which is aligned to 4. Fields have no bits above w.
template <class Warp>
INCCL_HOST_DEVICE void Pack(const Warp& warp, const Fields& fields, uint32_t width, uint8_t* out) {
  const Geometry at(width, warp.lane());
  uint32_t string[4], touched[kMaxReach];
  Join(fields, width, string);
  touched[0] = string[0] << at.shift;
  for (uint32_t i = 1; i < 4; ++i) touched[i] = FunnelLeft(string[i - 1], string[i], at.shift);
  touched[4] = FunnelLeft(string[3], 0, at.shift);
  // Gives floor(4 word / w) for words below 128: the product's error is below 1/16, and w <= 16.
  const uint32_t reciprocal = 65536 / width + 1;
  auto* words = reinterpret_cast<uint32_t*>(out);
  for (uint32_t r = 0; r < kMaxRows; ++r) {
    if (r >= at.rows) continue;
    const uint32_t word = kWarp * r + warp.lane();
    const uint32_t owner = 4 * word * reciprocal >> 16;  // lane that has the word's first byte
    const uint32_t index = word - width * owner / 4;     // index among the words it touches
    uint32_t value = 0;
    for (uint32_t i = 0; i < kMaxReach; ++i) {
      if (i >= at.reach) continue;
      const uint32_t got = warp.Get(touched[i], owner);
      if (index == i) value = got;
    }
    // The next lanes whose first byte is also in this word: three if w = 1, else one.
    for (uint32_t i = 1; i < 4; ++i) {
      if (i > (width == 1 ? 3u : 1u)) continue;
      const uint32_t got = warp.Get(touched[0], owner + i);
      if (width * (owner + i) < 4 * word + 4) value |= got;
    }
    if (word < at.words) words[word] = value;
  }
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_WARP_FIELDS_H_
