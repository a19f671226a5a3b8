// SPDX-License-Identifier: Apache-2.0
//
// Byte shuffles for packed fields of at most 8 bits. 16 fields of w bits fill 2 w bytes; a 128-bit
// part of a vector holds them as two 64-bit lanes with 8 w bits each.
#ifndef INCCL_COMPRESS_KERNELS_BYTE_PACK_TABLES_H_
#define INCCL_COMPRESS_KERNELS_BYTE_PACK_TABLES_H_

#include <cstdint>

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

#endif  // INCCL_COMPRESS_KERNELS_BYTE_PACK_TABLES_H_
