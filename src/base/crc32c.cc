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
[[gnu::target("sse4.2")]] uint32_t ByInstruction(std::span<const std::byte> bytes) {
  uint64_t crc = ~0u;
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
