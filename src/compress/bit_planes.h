// SPDX-License-Identifier: Apache-2.0
//
// Stores unsigned fields of one width, at most 16 bits, as bit planes: plane k holds bit k of every
// field, that of field j as bit j % 8 of byte j / 8. The unused bits of a plane's last byte are
// zero. The planes follow each other, plane 0 first.
#ifndef INCCL_COMPRESS_BIT_PLANES_H_
#define INCCL_COMPRESS_BIT_PLANES_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace inccl {

constexpr uint32_t PlaneBytes(uint32_t count) { return (count + 7) / 8; }

namespace planes {

// Transposes 8 x 8 bits: bit j of byte i becomes bit i of byte j.
constexpr uint64_t Transpose(uint64_t x) {
  uint64_t swap = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= swap ^ (swap << 7);
  swap = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= swap ^ (swap << 14);
  swap = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  return x ^ swap ^ (swap << 28);
}

constexpr std::byte ByteOf(uint64_t x, uint32_t i) { return static_cast<std::byte>(x >> (8 * i)); }

}  // namespace planes

// Writes width * PlaneBytes(count) bytes. Bits of a value above `width` are ignored.
inline void PackPlanes(const uint16_t* values, uint32_t count, uint32_t width, std::byte* out) {
  const uint32_t bytes = PlaneBytes(count);
  for (uint32_t group = 0; group < bytes; ++group) {
    const uint32_t here = std::min(8u, count - 8 * group);
    uint64_t low = 0, high = 0;
    for (uint32_t i = 0; i < here; ++i) {
      low |= uint64_t{values[8 * group + i] & 0xFFu} << (8 * i);
      high |= uint64_t{static_cast<uint32_t>(values[8 * group + i]) >> 8} << (8 * i);
    }
    low = planes::Transpose(low);
    high = planes::Transpose(high);
    for (uint32_t k = 0; k < width; ++k) {
      out[k * bytes + group] = planes::ByteOf(k < 8 ? low : high, k % 8);
    }
  }
}

// Reads width * PlaneBytes(count) bytes.
inline void UnpackPlanes(const std::byte* in, uint32_t count, uint32_t width, uint16_t* values) {
  const uint32_t bytes = PlaneBytes(count);
  for (uint32_t group = 0; group < bytes; ++group) {
    uint64_t low = 0, high = 0;
    for (uint32_t k = 0; k < width; ++k) {
      const auto byte = std::to_integer<uint64_t>(in[k * bytes + group]) << (8 * (k % 8));
      (k < 8 ? low : high) |= byte;
    }
    low = planes::Transpose(low);
    high = planes::Transpose(high);
    const uint32_t here = std::min(8u, count - 8 * group);
    for (uint32_t i = 0; i < here; ++i) {
      values[8 * group + i] =
          static_cast<uint16_t>(std::to_integer<uint32_t>(planes::ByteOf(low, i)) |
                                std::to_integer<uint32_t>(planes::ByteOf(high, i)) << 8);
    }
  }
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_BIT_PLANES_H_
