// SPDX-License-Identifier: Apache-2.0
//
// Side words: the scale codes of a superblock in 32 bits. Bits 0 to 7 are the largest code, the
// top; bits 8 + 3 b to 10 + 3 b tell how far the code of block b is below it. Payloads and the
// codec's state hold words as little-endian bytes without alignment.
#ifndef INCCL_COMPRESS_HBI_SIDE_WORDS_H_
#define INCCL_COMPRESS_HBI_SIDE_WORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/codec.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

inline constexpr uint32_t kWordBytes = 4;
inline constexpr uint32_t kMostBelow = 7;  // the largest distance of a code from the top

constexpr uint32_t TopOf(uint32_t word) { return word & 0xff; }
// Below 256 for any word: a peer may change a word in its memory after the check.
constexpr uint32_t CodeOf(uint32_t word, uint32_t block) {
  return (TopOf(word) - (word >> (8 + 3 * block) & 7)) & 0xff;
}
// True if the superblock has levels to plan: neither all zero nor poisoned.
constexpr bool IsLive(uint32_t word) { return TopOf(word) != kZeroCode && TopOf(word) != kPoison; }
constexpr bool IsPoison(uint32_t word) { return TopOf(word) == kPoison; }

// The word of a superblock's codes. No code is more than kMostBelow under the top or below 1; zero
// and poison are the whole superblock's.
constexpr uint32_t WordOf(const uint8_t* codes) {
  uint32_t top = 0;
  for (uint32_t b = 0; b < kBlocks; ++b) top = std::max<uint32_t>(top, codes[b]);
  uint32_t word = top;
  if (!IsLive(word)) return word;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const uint32_t most = std::min(top - 1, kMostBelow);
    word |= std::min(top - codes[b], most) << (8 + 3 * b);
  }
  return word;
}

// The agreement of two words: commutative, associative, idempotent.
constexpr uint32_t Merged(uint32_t a, uint32_t b) {
  uint8_t codes[kBlocks] = {};
  for (uint32_t i = 0; i < kBlocks; ++i) {
    codes[i] = static_cast<uint8_t>(std::max(CodeOf(a, i), CodeOf(b, i)));
  }
  return WordOf(codes);
}

constexpr bool HasBlockAtTop(uint32_t word) {
  constexpr uint32_t kOnes = 011111111;
  const uint32_t below = word >> 8;
  return ((below | below >> 1 | below >> 2) & kOnes) != kOnes;
}

// What a receiver accepts: a block at the top, no code below 1, nothing below a top of zero or
// poison; not the reserved top.
constexpr bool IsValid(uint32_t word) {
  const uint32_t top = TopOf(word), below = word >> 8;
  if (!IsLive(word)) return below == 0;
  bool above_zero = true;
  for (uint32_t b = 0; b < kBlocks && top <= kMostBelow; ++b) {
    above_zero = above_zero && (below >> 3 * b & 7) < top;
  }
  return top <= kLastCode && HasBlockAtTop(word) && above_zero;
}

inline uint32_t LoadWord(const uint8_t* words, size_t superblock) {
  uint32_t word;
  std::memcpy(&word, words + superblock * kWordBytes, sizeof word);
  return word;
}
inline void StoreWord(uint32_t word, uint8_t* words, size_t superblock) {
  std::memcpy(words + superblock * kWordBytes, &word, sizeof word);
}

inline bool AreValid(const uint8_t* words, size_t superblocks) {
  // The words of ordinary data, without branches and in integers, so that the compiler makes
  // vectors.
  uint32_t unusual = 0;
  for (size_t s = 0; s < superblocks; ++s) {
    const uint32_t word = LoadWord(words, s), top = TopOf(word);
    unusual |=
        uint32_t{top <= kMostBelow} | uint32_t{top > kLastCode} | uint32_t{!HasBlockAtTop(word)};
  }
  if (unusual == 0) return true;
  bool valid = true;
  for (size_t s = 0; s < superblocks; ++s) valid = valid && IsValid(LoadWord(words, s));
  return valid;
}

// Adds the zero and poisoned blocks among the first `blocks` to the statistics.
inline void CountBlocks(const uint8_t* words, uint64_t blocks, CodecStats* stats) {
  for (uint64_t b = 0; b < blocks; b += kBlocks) {
    const uint32_t top = TopOf(LoadWord(words, b / kBlocks));
    const uint64_t here = std::min<uint64_t>(kBlocks, blocks - b);
    if (top == kZeroCode) stats->zero_blocks += here;
    if (top == kPoison) stats->poisoned_blocks += here;
  }
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_SIDE_WORDS_H_
