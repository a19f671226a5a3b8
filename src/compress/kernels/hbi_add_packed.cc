// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
namespace {

// 64 fields fill `kWords` words and carry nothing beyond them: one chain of additions, which
// compilers turn into add-with-carry.
template <uint32_t kWords>
void AddGroups(const uint8_t* a, const uint8_t* b, size_t groups, uint8_t* out) {
  for (size_t g = 0; g < groups; ++g) {
    uint64_t x[kWords], y[kWords];
    std::memcpy(x, a, sizeof x);
    std::memcpy(y, b, sizeof y);
    unsigned __int128 carry = 0;
    for (uint32_t i = 0; i < kWords; ++i) {
      carry += x[i];
      carry += y[i];
      x[i] = static_cast<uint64_t>(carry);
      carry >>= 64;
    }
    std::memcpy(out, x, sizeof x);
    a += sizeof x;
    b += sizeof x;
    out += sizeof x;
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
  kAdd[width](a, b, words / width, out);
}

}  // namespace inccl::hbi
