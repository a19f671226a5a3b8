// SPDX-License-Identifier: Apache-2.0
//
// Bulk queries on scale codes.
#ifndef INCCL_COMPRESS_HBI_CODES_H_
#define INCCL_COMPRESS_HBI_CODES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compress/codec.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

// True if one of a superblock's codes is kPoison.
inline bool HasPoison(const uint8_t* codes) {
  uint64_t eight;
  static_assert(sizeof eight == kBlocks);
  std::memcpy(&eight, codes, sizeof eight);
  const uint64_t inverted = ~eight;  // kPoison becomes a zero byte
  return ((inverted - 0x0101010101010101u) & ~inverted & 0x8080808080808080u) != 0;
}

// Sets a superblock's poisoned blocks to zero.
inline void ClearPoisoned(const uint8_t* codes, float* x) {
  for (uint32_t b = 0; b < kBlocks; ++b) {
    if (codes[b] == kPoison) std::memset(x + b * kBlock, 0, kBlock * sizeof(float));
  }
}

inline bool HasReserved(const uint8_t* codes, size_t count) {
  uint8_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    found |= static_cast<uint8_t>(codes[i] - (kLastCode + 1)) < kPoison - kLastCode - 1 ? 1 : 0;
  }
  return found != 0;
}

// Adds the zero and poisoned blocks among the first `blocks` to the statistics. After a rotation a
// superblock is zero or poisoned only as a whole.
inline void CountBlocks(const uint8_t* codes, uint64_t blocks, bool rotated, CodecStats* stats) {
  if (!rotated) {
    for (uint64_t b = 0; b < blocks; ++b) {
      stats->zero_blocks += codes[b] == kZeroCode ? 1 : 0;
      stats->poisoned_blocks += codes[b] == kPoison ? 1 : 0;
    }
    return;
  }
  for (uint64_t b = 0; b < blocks; b += kBlocks) {
    const uint64_t here = std::min<uint64_t>(kBlocks, blocks - b);
    const uint8_t* first = codes + b;
    const auto is = [first](uint8_t code) { return std::count(first, first + kBlocks, code); };
    if (is(kZeroCode) == kBlocks) stats->zero_blocks += here;
    if (is(kPoison) != 0) stats->poisoned_blocks += here;
  }
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CODES_H_
