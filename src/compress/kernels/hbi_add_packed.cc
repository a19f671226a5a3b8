// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
namespace {

// x + y + carry, by the processor's instruction if the compiler has an intrinsic for it.
inline uint64_t AddWithCarry(uint64_t x, uint64_t y, unsigned char* carry) {
#if defined(__x86_64__)
  unsigned long long sum;  // NOLINT(google-runtime-int): the intrinsic's type
  *carry = _addcarry_u64(*carry, x, y, &sum);
  return sum;
#else
  uint64_t partial, sum;
  const bool first = __builtin_add_overflow(x, y, &partial);
  const bool second = __builtin_add_overflow(partial, uint64_t{*carry}, &sum);
  *carry = first || second ? 1 : 0;
  return sum;
#endif
}

template <uint32_t kWords, uint32_t kWord = 0>
inline void AddWords(const uint8_t* a, const uint8_t* b, unsigned char carry, uint8_t* out) {
  if constexpr (kWord < kWords) {
    uint64_t x, y;
    std::memcpy(&x, a + 8 * kWord, sizeof x);
    std::memcpy(&y, b + 8 * kWord, sizeof y);
    const uint64_t sum = AddWithCarry(x, y, &carry);
    std::memcpy(out + 8 * kWord, &sum, sizeof sum);
    AddWords<kWords, kWord + 1>(a, b, carry, out);
  }
}

// 64 fields fill kWords words and carry nothing beyond them, so one chain of additions adds them.
template <uint32_t kWords>
void AddGroups(const uint8_t* a, const uint8_t* b, size_t groups, uint8_t* out) {
  for (size_t g = 0; g < groups; ++g) {
    AddWords<kWords>(a, b, 0, out);
    a += 8 * kWords;
    b += 8 * kWords;
    out += 8 * kWords;
  }
}

using AddFunction = void (*)(const uint8_t*, const uint8_t*, size_t, uint8_t*);

constexpr AddFunction kAdd[] = {
    nullptr,       AddGroups<1>,  AddGroups<2>,  AddGroups<3>,  AddGroups<4>,  AddGroups<5>,
    AddGroups<6>,  AddGroups<7>,  AddGroups<8>,  AddGroups<9>,  AddGroups<10>, AddGroups<11>,
    AddGroups<12>, AddGroups<13>, AddGroups<14>, AddGroups<15>, AddGroups<16>,
};

}  // namespace

void AddPacked(const uint8_t* a, const uint8_t* b, size_t words, uint32_t width, uint8_t* out) {
  const uint32_t bits = width % 2 != 0 ? width : width / 2;
  kAdd[bits](a, b, words / bits, out);
}

}  // namespace inccl::hbi
