// SPDX-License-Identifier: Apache-2.0
//
// Side words: the scale codes of a superblock in 32 bits, in one of two layouts. The lowest byte
// tells which:
//   0          every code is kZeroCode
//   1 .. 249   a middle word: the largest code, the top, is kMiddleFirst - 1 more; bits 8 + 3 b to
//              10 + 3 b tell how far the code of block b is below it
//   250 .. 254 an outer word, of a top beyond the middle codes: the next byte, and 256 for each
//              above 250, are the top; bits 16 + 2 b and 17 + 2 b are the distance of block b
//   255        every code is kPoison
// Payloads and the codec's state hold words as little-endian bytes without alignment.
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
// The codes whose superblocks have middle words: 2^-36 to 2^13.6.
inline constexpr uint32_t kMiddleFirst = 321, kMiddleLast = 569;
inline constexpr uint32_t kBeforeMiddle = kMiddleFirst - 1;
// The lowest bytes of words.
inline constexpr uint32_t kZeroWord = 0, kPoisonWord = 255;
inline constexpr uint32_t kMiddleBytes = 249, kOuterByte = 250;
// The largest distances of a code from the top in either layout.
inline constexpr uint32_t kMostBelow = 7, kMostBelowOuter = 3;
static_assert(kMiddleLast == kBeforeMiddle + kMiddleBytes);
static_assert(kOuterByte * 256 + kLastCode < kPoisonWord * 256);

constexpr bool IsMiddle(uint32_t word) { return (word & 0xff) - 1 < kMiddleBytes; }
// True if the superblock has levels to plan: neither all zero nor poisoned.
constexpr bool IsLive(uint32_t word) {
  return (word & 0xff) != kZeroWord && (word & 0xff) != kPoisonWord;
}
constexpr bool IsPoison(uint32_t word) { return (word & 0xff) == kPoisonWord; }

// The largest code. Below kTableCodes for any word, as are all codes: a peer may change a word in
// its memory after the check.
constexpr uint32_t TopOf(uint32_t word) {
  if (IsMiddle(word)) return kBeforeMiddle + (word & 0xff);
  if (!IsLive(word)) return IsPoison(word) ? kPoison : kZeroCode;
  return ((word & 0xff) - kOuterByte) << 8 | (word >> 8 & 0xff);
}
// How far the code of a block is below the top of a live word.
constexpr uint32_t BelowOf(uint32_t word, uint32_t block) {
  return IsMiddle(word) ? word >> (8 + 3 * block) & 7 : word >> (16 + 2 * block) & 3;
}
constexpr uint32_t CodeOf(uint32_t word, uint32_t block) {
  const uint32_t top = TopOf(word), below = IsLive(word) ? BelowOf(word, block) : 0;
  return top < below ? 0 : top - below;
}

// The least code in a live superblock with this top. It does not fall where the top grows, which
// makes merging associative.
constexpr uint32_t LeastCode(uint32_t top) {
  const bool middle = kMiddleFirst <= top && top <= kMiddleLast;
  const uint32_t first = middle ? kMiddleFirst : 1, most = middle ? kMostBelow : kMostBelowOuter;
  return top < first + most ? first : top - most;
}

// The word with this top, 0 < top <= kLastCode, without distances.
constexpr uint32_t WordOfTop(uint32_t top) {
  if (kMiddleFirst <= top && top <= kMiddleLast) return top - kBeforeMiddle;
  return (kOuterByte + (top >> 8)) | (top & 0xff) << 8;
}
// The bits in such a word for a block `below` codes below its top.
constexpr uint32_t BelowBits(uint32_t word, uint32_t block, uint32_t below) {
  return IsMiddle(word) ? below << (8 + 3 * block) : below << (16 + 2 * block);
}

// The word of a superblock's codes. Those below LeastCode become it; zero and poison are the whole
// superblock's.
constexpr uint32_t WordOf(const uint16_t* codes) {
  uint32_t top = 0;
  for (uint32_t b = 0; b < kBlocks; ++b) top = std::max<uint32_t>(top, codes[b]);
  if (top == kZeroCode) return kZeroWord;
  if (top == kPoison) return kPoisonWord;
  const uint32_t least = LeastCode(top), bare = WordOfTop(top);
  uint32_t word = bare;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    word |= BelowBits(bare, b, top - std::max<uint32_t>(codes[b], least));
  }
  return word;
}

// The agreement of two words: commutative, associative, idempotent.
constexpr uint32_t Merged(uint32_t a, uint32_t b) {
  uint16_t codes[kBlocks] = {};
  for (uint32_t i = 0; i < kBlocks; ++i) {
    codes[i] = static_cast<uint16_t>(std::max(CodeOf(a, i), CodeOf(b, i)));
  }
  return WordOf(codes);
}

// What a receiver accepts: what WordOf returns of some codes.
constexpr bool IsValid(uint32_t word) {
  if (!IsLive(word)) return word >> 8 == 0;
  const uint32_t top = TopOf(word), least = LeastCode(top);
  if (top == 0 || top > kLastCode || WordOfTop(top) % 256 != word % 256) return false;
  uint32_t nearest = kMostBelow, farthest = 0;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const uint32_t below = BelowOf(word, b);
    nearest = std::min(nearest, below);
    farthest = std::max(farthest, below);
  }
  return nearest == 0 && farthest <= top - least;
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
  // vectors: in the middle, with all distances possible and one of them 0.
  constexpr uint32_t kOnes = 011111111;
  uint32_t unusual = 0;
  for (size_t s = 0; s < superblocks; ++s) {
    const uint32_t word = LoadWord(words, s), byte = word & 0xff, below = word >> 8;
    unusual |= uint32_t{byte <= kMostBelow} | uint32_t{byte > kMiddleBytes} |
               uint32_t{((below | below >> 1 | below >> 2) & kOnes) == kOnes};
  }
  if (unusual == 0) return true;
  bool valid = true;
  for (size_t s = 0; s < superblocks; ++s) valid = valid && IsValid(LoadWord(words, s));
  return valid;
}

// Adds the zero and poisoned blocks among the first `blocks` to the statistics.
inline void CountBlocks(const uint8_t* words, uint64_t blocks, CodecStats* stats) {
  for (uint64_t b = 0; b < blocks; b += kBlocks) {
    const uint32_t word = LoadWord(words, b / kBlocks);
    const uint64_t here = std::min<uint64_t>(kBlocks, blocks - b);
    if (IsPoison(word)) stats->poisoned_blocks += here;
    if (!IsLive(word) && !IsPoison(word)) stats->zero_blocks += here;
  }
}

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_SIDE_WORDS_H_
