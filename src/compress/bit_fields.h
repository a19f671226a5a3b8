// SPDX-License-Identifier: Apache-2.0
//
// Unsigned fields of one width, at most 32 bits, as one little-endian bit string: field j is bits
// j * width to (j + 1) * width - 1, bit 0 the lowest of the first byte. What is left of the last
// byte is zero.
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

// Values have no bits above `width`.
template <typename Value>
void PackFields(const Value* values, uint32_t count, uint32_t width, std::byte* out) {
  uint64_t pending = 0;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < count; ++i) {
    pending |= uint64_t{values[i]} << bits;
    bits += width;
    if (bits >= 32) {
      std::memcpy(out, &pending, 4);
      out += 4;
      pending >>= 32;
      bits -= 32;
    }
  }
  std::memcpy(out, &pending, (bits + 7) / 8);
}

// Reads FieldBytes(count, width) bytes.
template <typename Value>
void UnpackFields(const std::byte* in, uint32_t count, uint32_t width, Value* values) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t pending = 0;
  uint32_t bits = 0, left = FieldBytes(count, width);
  for (uint32_t i = 0; i < count; ++i) {
    if (bits < width) {
      const uint32_t now = std::min(4u, left);
      uint32_t next = 0;
      std::memcpy(&next, in, now);
      in += now;
      left -= now;
      pending |= uint64_t{next} << bits;
      bits += 8 * now;
    }
    values[i] = static_cast<Value>(pending & mask);
    pending >>= width;
    bits -= width;
  }
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_BIT_FIELDS_H_
