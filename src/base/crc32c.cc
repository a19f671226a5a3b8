// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
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

// The sum of more bytes, without the inversions at both ends.
[[gnu::target("sse4.2")]] uint32_t ByInstruction(uint32_t before,
                                                 std::span<const std::byte> bytes) {
  uint64_t crc = before;
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
  return last;
}

// x^power modulo the polynomial, as the multiplier of a carry-less multiplication: the product of
// two numbers whose bits are in reverse order comes out one bit too low.
constexpr long long Multiplier(int power) {  // NOLINT(google-runtime-int): as the intrinsics
  uint32_t remainder = 0x80000000u;          // 1
  for (int i = 0; i < power; ++i) {
    remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78u : 0u);
  }
  const uint64_t multiplier = uint64_t{remainder} << 1;
  return static_cast<long long>(multiplier);  // NOLINT(google-runtime-int)
}

// Replaces bytes by others of equal sum that stand kBits further on: each half of 128 bits is
// multiplied by x^kBits modulo the polynomial. (V. Gopal et al., Fast CRC computation for generic
// polynomials using PCLMULQDQ instruction, 2009.)
template <int kBits>
[[gnu::target("avx512f,vpclmulqdq")]] inline __m512i MovedOn(__m512i bytes, __m512i onto) {
  constexpr auto kLow = Multiplier(kBits + 32), kHigh = Multiplier(kBits - 32);
  const __m512i by = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bytes, by, 0x00),
                                   _mm512_clmulepi64_epi128(bytes, by, 0x11), onto, 0x96);
}

// Four vectors side by side, because a multiplication takes several cycles. In order, so that the
// processor's prefetching keeps up with memory.
constexpr size_t kVector = 64, kVectors = 4;
[[gnu::target("avx512f,vpclmulqdq,sse4.2")]] uint32_t ByVectors(std::span<const std::byte> bytes) {
  constexpr int kBits = 8 * kVector;
  __m512i sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = _mm512_loadu_si512(bytes.data() + i * kVector);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
  bytes = bytes.subspan(kVectors * kVector);
  for (; bytes.size() >= kVectors * kVector; bytes = bytes.subspan(kVectors * kVector)) {
    for (size_t i = 0; i < kVectors; ++i) {
      sums[i] = MovedOn<kVectors * kBits>(sums[i], _mm512_loadu_si512(bytes.data() + i * kVector));
    }
  }
  for (size_t i = 1; i < kVectors; ++i) sums[i] = MovedOn<kBits>(sums[i - 1], sums[i]);
  std::array<uint64_t, kVector / sizeof(uint64_t)> last;
  _mm512_storeu_si512(last.data(), sums[kVectors - 1]);
  uint64_t crc = 0;
  for (const uint64_t eight : last) crc = _mm_crc32_u64(crc, eight);
  return ~ByInstruction(static_cast<uint32_t>(crc), bytes);
}
#endif

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  static const bool has_vectors = has_instruction && __builtin_cpu_supports("avx512f") != 0 &&
                                  __builtin_cpu_supports("vpclmulqdq") != 0;
  if (has_vectors && bytes.size() >= 2 * kVectors * kVector) return ByVectors(bytes);
  if (has_instruction) return ~ByInstruction(~0u, bytes);
#endif
  return ByTable(bytes);
}

}  // namespace inccl
