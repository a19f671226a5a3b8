// SPDX-License-Identifier: Apache-2.0
//
// Byte shuffles for packed fields of at most 8 bits. 16 fields of w bits fill 2 w bytes; a 128-bit
// part of a vector holds them as two 64-bit lanes with 8 w bits each.
#ifndef INCCL_COMPRESS_KERNELS_PACK_TABLES_H_
#define INCCL_COMPRESS_KERNELS_PACK_TABLES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "compress/hbi/format.h"

namespace inccl::packing {

inline constexpr uint32_t kWidestByte = 8;

// By width; [0] is not used.
struct ByteTables {
  alignas(16) uint8_t gather[kWidestByte + 1][16];  // joins the lanes' bytes
  alignas(16) uint8_t spread[kWidestByte + 1][16];  // separates them
};

constexpr ByteTables MakeByteTables() {
  constexpr uint8_t kZero = 0x80;
  ByteTables t{};
  for (uint32_t w = 1; w <= kWidestByte; ++w) {
    for (uint32_t i = 0; i < 16; ++i) {
      t.gather[w][i] = i < w       ? static_cast<uint8_t>(i)
                       : i < 2 * w ? static_cast<uint8_t>(8 + i - w)
                                   : kZero;
      t.spread[w][i] = static_cast<uint8_t>(i < 8 ? i : w + i - 8);
    }
  }
  return t;
}

inline constexpr ByteTables kByteTables = MakeByteTables();

}  // namespace inccl::packing

namespace inccl::hbi {

// Constants for vectors of packed fields. Eight fields of w bits fill w bytes and form a group. A
// 128-bit part of a vector handles one group, in 16-bit lanes. All constants follow from w.

inline constexpr uint32_t kNarrowest = 1, kWidest = 16;
inline constexpr uint32_t kLastNarrow = 9;  // the widest field that lies within two bytes
inline constexpr uint8_t kZeroByte = 0x80;  // index of a byte shuffle that gives 0

struct PackTable {
  // Narrow fields. `words` permutes 32-bit words to bring groups at stride w into 128-bit parts,
  // `spread` takes the two bytes of each field, and `left` shifts (by multiplication) the bits
  // above the field out of the 16-bit lane.
  alignas(64) uint32_t words[16];
  alignas(64) uint8_t spread[64];
  alignas(16) uint16_t left[8];
  // Wide fields, in three bytes: (low >> s) | (next << (8 - s)), with multiplications as shifts.
  alignas(16) uint8_t spread_low[16];
  alignas(16) uint8_t spread_next[16];
  alignas(16) uint16_t times_low[8];   // high half of the product
  alignas(16) uint16_t times_next[8];  // low half of the product
  // Packing: joins the bytes of two 64-bit lanes with 4 w bits each. For odd w the second lane is
  // shifted left by four bits, and `gather_second` takes its bytes.
  alignas(16) uint8_t gather[16];
  alignas(16) uint8_t gather_second[16];
};

constexpr PackTable MakePackTable(uint32_t w) {
  PackTable t{};
  for (uint32_t g = 0; g < 4; ++g) {
    for (uint32_t i = 0; i < 4; ++i) t.words[4 * g + i] = (g * w / 4 + i) % 16;
  }
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t byte = i * w / 8, s = i * w % 8;
    for (uint32_t g = 0; g < 4; ++g) {
      const uint32_t at = g * w % 4 + byte;
      t.spread[16 * g + 2 * i] = static_cast<uint8_t>(at % 16);
      t.spread[16 * g + 2 * i + 1] = static_cast<uint8_t>((at + 1) % 16);
    }
    t.left[i] = static_cast<uint16_t>(s + w <= 16 ? 1u << (16 - w - s) : 0);

    // s = 0 is handled as a shift by 8 of the byte pair one position lower.
    const bool aligned = s == 0;
    const auto pick = [](uint32_t b) { return static_cast<uint8_t>(b < 16 ? b : kZeroByte); };
    t.spread_low[2 * i] = aligned ? (byte == 0 ? kZeroByte : pick(byte - 1)) : pick(byte);
    t.spread_low[2 * i + 1] = aligned ? pick(byte) : pick(byte + 1);
    t.spread_next[2 * i] = pick(byte + 1);
    t.spread_next[2 * i + 1] = pick(byte + 2);
    t.times_low[i] = static_cast<uint16_t>(1u << (16 - (aligned ? 8 : s)));
    t.times_next[i] = static_cast<uint16_t>(1u << (8 - s));
  }
  const bool odd = w % 2 != 0;
  const uint32_t first = odd ? (w + 1) / 2 : w / 2, second = odd ? (w - 1) / 2 : w / 2;
  for (uint32_t m = 0; m < 16; ++m) {
    t.gather[m] = m < first ? static_cast<uint8_t>(m) : kZeroByte;
    t.gather_second[m] = kZeroByte;
    if (m >= second && m < w)
      (odd ? t.gather_second : t.gather)[m] = static_cast<uint8_t>(8 + m - second);
  }
  return t;
}

// By width; [0] is not used.
struct PackTables {
  PackTable by_width[kWidest + 1];
};

constexpr PackTables MakePackTables() {
  PackTables tables{};
  for (uint32_t w = kNarrowest; w <= kWidest; ++w) tables.by_width[w] = MakePackTable(w);
  return tables;
}

inline constexpr PackTables kPackTables = MakePackTables();

// Constants for vectors of packed fields with AVX2 (hbi_strip_avx2-inl.h). A 128-bit part of a
// vector has eight fields of w bits, with two codes each, in 16-bit lanes; they fill w bytes. The
// two codes are neighbours where w is even, and the elements with the same place in two blocks
// where it is odd.

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

// Constants for vectors of packed fields with the byte permutations of AVX-512 VBMI
// (hbi_strip-inl.h). A vector has 32 fields of w bits in 16-bit lanes, which fill 4 w bytes. Codes
// of at most 8 bits go in pairs: a field of w half-bits has two codes, neighbours where w is even,
// the elements with the same place in two blocks where it is odd. Codes of more bits go by
// themselves.

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

namespace inccl::select {

// Which lanes of a vector of up to 8 have a bit in a mask.
struct TakenLanes {
  uint8_t places[8] = {}, count = 0;
};

inline constexpr std::array<TakenLanes, 256> kTakenLanes = [] {
  std::array<TakenLanes, 256> table{};
  for (size_t mask = 0; mask < table.size(); ++mask) {
    for (uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) table[mask].places[table[mask].count++] = lane;
    }
  }
  return table;
}();

}  // namespace inccl::select

#endif  // INCCL_COMPRESS_KERNELS_PACK_TABLES_H_
