// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace inccl {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t ByTable(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xFF];
  }
  return ~crc;
}

#if defined(__x86_64__)
// An instruction takes three cycles and a new one can begin in each, so three parts of the bytes
// are summed side by side.
constexpr size_t kPart = 1024;

// What kPart zero bytes make of a sum. That is linear, so it is looked up byte by byte.
using Shift = std::array<std::array<uint32_t, 256>, sizeof(uint32_t)>;
constexpr Shift MakeShift() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < of_bit.size(); ++bit) {
    uint32_t crc = 1u << bit;
    for (size_t i = 0; i < kPart; ++i) crc = (crc >> 8) ^ kTable[crc & 0xFF];
    of_bit[bit] = crc;
  }
  Shift shift{};
  for (size_t place = 0; place < shift.size(); ++place) {
    for (size_t value = 0; value < 256; ++value) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) shift[place][value] ^= of_bit[8 * place + bit];
      }
    }
  }
  return shift;
}
constexpr Shift kShift = MakeShift();

uint64_t BehindZeros(uint64_t crc) {
  return kShift[0][crc & 0xFF] ^ kShift[1][crc >> 8 & 0xFF] ^ kShift[2][crc >> 16 & 0xFF] ^
         kShift[3][crc >> 24 & 0xFF];
}

[[gnu::target("sse4.2")]] uint32_t ByInstruction(std::span<const std::byte> bytes) {
  uint64_t crc = ~0u;
  for (; bytes.size() >= 3 * kPart; bytes = bytes.subspan(3 * kPart)) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kPart; i += sizeof crc) {
      std::array<uint64_t, 3> eight;
      for (size_t part = 0; part < eight.size(); ++part) {
        std::memcpy(&eight[part], bytes.data() + part * kPart + i, sizeof crc);
      }
      crc = _mm_crc32_u64(crc, eight[0]);
      second = _mm_crc32_u64(second, eight[1]);
      third = _mm_crc32_u64(third, eight[2]);
    }
    crc = BehindZeros(BehindZeros(crc) ^ second) ^ third;
  }
  for (; bytes.size() >= sizeof crc; bytes = bytes.subspan(sizeof crc)) {
    uint64_t eight;
    std::memcpy(&eight, bytes.data(), sizeof eight);
    crc = _mm_crc32_u64(crc, eight);
  }
  auto last = static_cast<uint32_t>(crc);
  for (const std::byte b : bytes) last = _mm_crc32_u8(last, std::to_integer<uint8_t>(b));
  return ~last;
}
#endif

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ByInstruction(bytes);
#endif
  return ByTable(bytes);
}

}  // namespace inccl
