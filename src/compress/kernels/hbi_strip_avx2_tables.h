// SPDX-License-Identifier: Apache-2.0
//
// Constants for vectors of packed fields with AVX2 (hbi_strip_avx2-inl.h). A 128-bit part of a
// vector has eight fields of w bits, with two codes each, in 16-bit lanes; they fill w bytes. The
// two codes are neighbours where w is even, and the elements with the same place in two blocks
// where it is odd.
#ifndef INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_TABLES_H_
#define INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_TABLES_H_

#include <cstdint>

#include "compress/hbi/format.h"

namespace inccl::hbi {

inline constexpr uint32_t kWidestBytePair = 14;  // half-bits: codes of at most 7 bits

// Fields of w bits. All constants are whole vectors, which instructions take from memory.
struct BytePairTable {
  alignas(32) uint16_t weights[16];  // of the two codes' bytes in a field
  alignas(32) uint32_t joins[8];     // of two neighbouring fields in a 32-bit lane
  // Packing, of two fields in the lower bits of each 32-bit lane: `raises` moves the lower lane up
  // to its neighbour in a 64-bit lane, `lowers` both down to bit 0, or to bit 4 where they begin in
  // the middle of a byte; `gather` takes the bytes, and `second` the one that two lanes share.
  alignas(32) uint32_t raises[8];
  alignas(32) uint64_t lowers[4];
  alignas(32) uint8_t gather[32];
  alignas(32) uint8_t second[32];
  // Unpacking: `spread` takes the bytes of two fields to each 32-bit lane, where they begin at bit
  // `offsets`.
  alignas(32) uint8_t spread[32];
  alignas(32) uint32_t offsets[8];
  alignas(16) uint64_t apart[2];  // a shift of the second field to its 16-bit lane
  // Where w is odd, the second code is field * times >> 16 >> shift, and a field + split * that has
  // the two codes in its bytes. Where it is even, the second code of field << shift is in its byte.
  alignas(16) uint64_t shift[2];
  alignas(32) uint16_t mask[16];  // of a field or, where w is even, of its codes once in bytes
  alignas(32) uint16_t times[16];
  alignas(32) uint16_t split[16];
};

constexpr BytePairTable MakeBytePairTable(uint32_t w) {
  BytePairTable t{};
  const bool odd = w % 2 != 0;
  const uint32_t base = odd ? PairBase(w) : 1u << w / 2;
  for (uint32_t i = 0; i < 16; ++i) {
    t.weights[i] = static_cast<uint16_t>(1 + 256 * base);
    t.mask[i] = static_cast<uint16_t>(odd ? (1u << w) - 1 : ((1u << w / 2) - 1) * 0x101);
    t.times[i] = static_cast<uint16_t>(InverseOfBase(w).times);
    t.split[i] = static_cast<uint16_t>(256 - base);
  }
  t.apart[0] = 16 - w;
  t.shift[0] = odd ? InverseOfBase(w).shift : 8 - w / 2;
  for (uint32_t i = 0; i < 8; ++i) {
    t.joins[i] = 1u << (16 + w) | 1;
    t.raises[i] = i % 2 == 0 ? 32 - 2 * w : 0;
    t.offsets[i] = i % 4 * 2 * w % 8;
  }
  for (uint32_t i = 0; i < 4; ++i) t.lowers[i] = 32 - 2 * w - (odd && i % 2 != 0 ? 4 : 0);
  const uint32_t shared = w / 2;  // the first byte of the second lane
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t m = i % 16;
    const bool first = odd ? m <= shared : m < shared;
    const uint32_t from = first ? m : 8 + m - shared;
    t.gather[i] = static_cast<uint8_t>(m < w ? from : 0x80);
    t.second[i] = odd && m == shared ? 8 : 0x80;
    t.spread[i] = static_cast<uint8_t>((m / 4 * 2 * w / 8 + m % 4) % 16);
  }
  return t;
}

// Puts the bytes of four vectors of 32-bit lanes, which are in the bytes of the lanes of one, in
// the order of fields: `shuffle` within 128-bit parts, then `words` of 32 bits.
struct BytePairOrder {
  alignas(32) uint8_t shuffle[32];
  alignas(32) uint32_t words[8];
};

struct BytePairTables {
  BytePairTable fields[kWidestBytePair + 1];  // by w; [0] and [1] are not used
  BytePairOrder orders[2];                    // [1] is for odd widths
  alignas(32) uint8_t split[32];              // first codes, then second ones, of 128-bit parts
};

constexpr BytePairTables MakeBytePairTables() {
  BytePairTables tables{};
  for (uint32_t w = 2; w <= kWidestBytePair; ++w) tables.fields[w] = MakeBytePairTable(w);
  constexpr uint32_t kEven[8] = {0, 4, 1, 5, 2, 6, 3, 7}, kOdd[8] = {0, 1, 4, 5, 2, 3, 6, 7};
  for (uint32_t i = 0; i < 8; ++i) {
    tables.orders[0].words[i] = kEven[i];
    tables.orders[1].words[i] = kOdd[i];
  }
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t m = i % 16;
    tables.orders[0].shuffle[i] = static_cast<uint8_t>(m % 4 * 4 + m / 4);
    tables.orders[1].shuffle[i] = static_cast<uint8_t>(m % 8 / 2 * 4 + m / 8 * 2 + m % 2);
    tables.split[i] = static_cast<uint8_t>(m % 8 * 2 + m / 8);
  }
  return tables;
}

inline constexpr BytePairTables kBytePairTables = MakeBytePairTables();

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_STRIP_AVX2_TABLES_H_
