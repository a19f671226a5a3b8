// SPDX-License-Identifier: Apache-2.0
//
// Packs unsigned fields of one width, at most 32 bits, into a little-endian bit string: field j is
// bits j * width to (j + 1) * width - 1, where bit 0 is the lowest of the first byte. The unused
// bits of the last byte are zero.
#ifndef INCCL_COMPRESS_BIT_FIELDS_H_
#define INCCL_COMPRESS_BIT_FIELDS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace inccl {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian streams");

constexpr uint32_t FieldBytes(uint32_t count, uint32_t width) { return (count * width + 7) / 8; }

namespace fields {

// The code handles eight values (`width` bytes) at a time, in memory with room behind it.
inline constexpr uint32_t kMost = 256;
inline constexpr uint32_t kRoom = kMost * 4 + 32;

// Eight values of at most 16 bits.
template <typename Value>
void PackEight(const Value* v, uint32_t width, std::byte* out) {
  const uint32_t half = 4 * width;
  uint64_t low = 0, high = 0;
  for (uint32_t j = 0; j < 4; ++j) {
    low |= uint64_t{v[j]} << (j * width);
    high |= uint64_t{v[4 + j]} << (j * width);
  }
  std::memcpy(out, &low, 8);
  if (half % 8 == 0) {
    std::memcpy(out + half / 8, &high, 8);
    return;
  }
  const uint64_t tail = high >> (64 - half);  // half < 64
  low |= high << half;
  std::memcpy(out, &low, 8);
  std::memcpy(out + 8, &tail, 8);
}

// Eight values of at most 16 bits.
template <typename Value>
void UnpackEight(const std::byte* in, uint32_t width, Value* v) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const uint32_t half = 4 * width;
  uint64_t low = 0, high = 0;
  std::memcpy(&low, in, 8);
  std::memcpy(&high, in + half / 8, 8);
  // Drop up to four bits of the first half; at most 60 bits remain.
  high >>= half % 8;
  for (uint32_t j = 0; j < 4; ++j) v[j] = static_cast<Value>(low >> (j * width) & mask);
  for (uint32_t j = 0; j < 4; ++j) v[4 + j] = static_cast<Value>(high >> (j * width) & mask);
}

}  // namespace fields

// Packs at most 256 values, which have no bits above `width`.
template <typename Value>
void PackFields(const Value* values, uint32_t count, uint32_t width, std::byte* out) {
  if (count == 0) return;  // `out` may be nullptr
  std::byte packed[fields::kRoom];
  uint32_t i = 0;
  if (width > 0 && width < 16) {
    for (; i + 8 <= count; i += 8) fields::PackEight(values + i, width, packed + i / 8 * width);
  }
  uint64_t pending = 0;
  uint32_t bits = 0;
  std::byte* to = packed + i / 8 * width;
  for (; i < count; ++i) {
    pending |= uint64_t{values[i]} << bits;
    bits += width;
    if (bits >= 32) {
      std::memcpy(to, &pending, 4);
      to += 4;
      pending >>= 32;
      bits -= 32;
    }
  }
  std::memcpy(to, &pending, 8);
  std::memcpy(out, packed, FieldBytes(count, width));
}

// Reads FieldBytes(count, width) bytes; at most 256 values.
template <typename Value>
void UnpackFields(const std::byte* in, uint32_t count, uint32_t width, Value* values) {
  std::byte packed[fields::kRoom];
  const uint32_t bytes = FieldBytes(count, width);
  if (bytes != 0) std::memcpy(packed, in, bytes);
  std::memset(packed + bytes, 0, 16);
  uint32_t i = 0;
  if (width > 0 && width < 16) {
    for (; i + 8 <= count; i += 8) fields::UnpackEight(packed + i / 8 * width, width, values + i);
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const std::byte* from = packed + i / 8 * width;
  uint32_t bit = 0;
  for (; i < count; ++i, bit += width) {
    uint64_t next = 0;
    std::memcpy(&next, from + bit / 8, 8);
    values[i] = static_cast<Value>(next >> bit % 8 & mask);
  }
}

// Stores unsigned fields of one width, at most 16 bits, as bit planes: plane k holds bit k of every
// field, that of field j as bit j % 8 of byte j / 8. The unused bits of a plane's last byte are
// zero. The planes follow each other, plane 0 first.

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

#endif  // INCCL_COMPRESS_BIT_FIELDS_H_
