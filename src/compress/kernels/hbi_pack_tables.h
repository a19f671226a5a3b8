// SPDX-License-Identifier: Apache-2.0
//
// Constants for vectors of packed fields. Eight fields of w bits fill w bytes and form a group. A
// 128-bit part of a vector handles one group, in 16-bit lanes. All constants follow from w.
#ifndef INCCL_COMPRESS_KERNELS_HBI_PACK_TABLES_H_
#define INCCL_COMPRESS_KERNELS_HBI_PACK_TABLES_H_

#include <cstdint>

namespace inccl::hbi {

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

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_KERNELS_HBI_PACK_TABLES_H_
