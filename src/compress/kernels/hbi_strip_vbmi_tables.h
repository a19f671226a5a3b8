// SPDX-License-Identifier: Apache-2.0
//
// Constants for vectors of packed fields with the byte permutations of AVX-512 VBMI
// (hbi_strip-inl.h). A vector has 32 fields of w bits in 16-bit lanes, which fill 4 w bytes. Codes
// of at most 8 bits go in pairs: a field of w half-bits has two codes, neighbours where w is even,
// the elements with the same place in two blocks where it is odd. Codes of more bits go by
// themselves.
#ifndef INCCL_COMPRESS_KERNELS_HBI_STRIP_TABLES_H_
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_TABLES_H_

#include <cstdint>

#include "compress/hbi/format.h"

namespace inccl::hbi {

inline constexpr uint32_t kWidestPair = 16;  // half-bits: widths of fields with two codes

// Fields of w bits.
struct FieldTable {
  // Packing, from four fields in a 64-bit lane that end at bit 32 + 2 w: `shifts` moves them to bit
  // 0, or to bit 4 where they begin in the middle of a byte, `gather` takes the bytes, and `second`
  // those that belong to two lanes, where `twice` has a bit.
  alignas(64) uint8_t shifts[64];
  alignas(64) uint8_t gather[64];
  alignas(64) uint8_t second[64];
  // Unpacking: `spread` takes the bytes of a 64-bit lane's fields, `offsets` the bits of each byte,
  // and `pair_offsets` those of two neighbouring codes of half as many bits.
  alignas(64) uint8_t spread[64];
  alignas(64) uint8_t offsets[64];
  alignas(64) uint8_t pair_offsets[64];
  uint64_t twice;
  uint64_t bytes;      // 4 w
  uint64_t rotations;  // of 32-bit lanes with two fields each
  uint32_t raises;     // multiplies 16-bit lanes
  uint16_t mask, pair_mask;
  // A field is the first code + base * the second one; / base as in InverseOfBase.
  uint16_t base, pair_base, times, shift;
  // With the two codes in bytes: a field + split * the second code has the first one in its lower
  // byte and the second in its upper one; and the bytes' weights in a field.
  uint16_t split, weights;
};

constexpr FieldTable MakeFieldTable(uint32_t w) {
  FieldTable t{};
  const bool odd = w % 2 != 0;
  t.bytes = 4 * w;
  t.raises = 0x10000u | (1u << (16 - w));
  t.rotations = uint64_t{16 + w} << 32 | (16 - w);
  t.mask = t.pair_mask = static_cast<uint16_t>((1u << w) - 1);
  if (odd) {
    t.base = t.pair_base = static_cast<uint16_t>(PairBase(w));
    t.times = static_cast<uint16_t>(InverseOfBase(w).times);
    t.shift = static_cast<uint16_t>(InverseOfBase(w).shift);
  } else {  // unpacked, each of the two has a byte
    t.base = static_cast<uint16_t>(1u << w / 2);
    t.pair_base = t.times = 256;
    t.pair_mask = static_cast<uint16_t>(((1u << w / 2) - 1) * 0x101);
  }
  t.split = static_cast<uint16_t>(256 - t.pair_base);
  t.weights = static_cast<uint16_t>(1 + 256 * t.base);
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t lane = i / 8, byte = i % 8;
    const uint32_t middle = odd && lane % 2 != 0 ? 4 : 0;  // bits of the lane's first byte
    t.shifts[i] = static_cast<uint8_t>((32 - 2 * w + 8 * byte - middle) % 64);
    t.spread[i] = static_cast<uint8_t>((lane * w / 2 + byte) % 64);
    t.offsets[i] = static_cast<uint8_t>((middle + byte / 2 * w + 8 * (byte % 2)) % 64);
    t.pair_offsets[i] = odd ? t.offsets[i] : static_cast<uint8_t>(byte * w / 2 % 64);
    if (odd) {  // two lanes fill w bytes and share one
      const uint32_t pair = i / w, at = i % w, shared = w / 2;
      const uint32_t from = 16 * pair + (at <= shared ? at : 8 + at - shared);
      t.gather[i] = static_cast<uint8_t>(from % 64);
      t.second[i] = static_cast<uint8_t>((16 * pair + 8) % 64);
      t.twice |= at == shared ? uint64_t{1} << i : 0;
    } else {
      t.gather[i] = static_cast<uint8_t>((8 * (i / (w / 2)) + i % (w / 2)) % 64);
    }
  }
  return t;
}

// Where the 64 codes of two blocks are in the 16-bit lanes of two vectors: with the first and the
// second codes of the pairs, and block by block. [1] is for odd widths.
struct PairOrder {
  alignas(64) uint16_t first[32];
  alignas(64) uint16_t second[32];
  alignas(64) uint16_t lower[32];
  alignas(64) uint16_t upper[32];
};

// The same for the 64 codes of two blocks in the bytes of one vector.
struct ByteOrder {
  // Takes them out of the third bytes of two vectors of 32-bit lanes, of each block; those of the
  // second one go where `second` has a bit.
  alignas(64) uint8_t narrow[64];
  alignas(64) uint8_t in_order[64];  // to the order of elements
  alignas(64) uint8_t widen[4][64];  // 16 elements, in order, to the first bytes of 32-bit lanes
  uint64_t second;
};

struct StripTables {
  FieldTable fields[kWidestPair + 1];  // by w; [0] and [1] are not used
  PairOrder orders[2];
  ByteOrder bytes[2];
};

constexpr StripTables MakeStripTables() {
  StripTables tables{};
  for (uint32_t w = 2; w <= kWidestPair; ++w) tables.fields[w] = MakeFieldTable(w);
  for (uint16_t i = 0; i < 32; ++i) {
    PairOrder &even = tables.orders[0], &odd = tables.orders[1];
    const auto half = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    const auto next = static_cast<uint16_t>(i + 32);
    even.first[i] = static_cast<uint16_t>(2 * i);
    even.second[i] = static_cast<uint16_t>(2 * i + 1);
    even.lower[i] = half;
    even.upper[i] = static_cast<uint16_t>(half + 16);
    odd.first[i] = odd.lower[i] = i;
    odd.second[i] = odd.upper[i] = next;
  }
  for (uint32_t odd = 0; odd < 2; ++odd) {
    ByteOrder& order = tables.bytes[odd];
    // Where element e of the two blocks is.
    const auto place = [=](uint32_t e) { return odd != 0 ? e % 32 * 2 + e / 32 : e; };
    for (uint32_t e = 0; e < 64; ++e) {
      order.narrow[place(e)] = static_cast<uint8_t>(e % 32 * 4 + 2);
      order.in_order[e] = static_cast<uint8_t>(place(e));
      order.second |= e >= 32 ? uint64_t{1} << place(e) : 0;
      for (uint32_t byte = 0; byte < 4; ++byte) {
        order.widen[e / 16][e % 16 * 4 + byte] =
            static_cast<uint8_t>(byte == 0 ? place(e) : 64 + byte);
      }
    }
  }
  return tables;
}

inline constexpr StripTables kStripTables = MakeStripTables();

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_STRIP_TABLES_H_
