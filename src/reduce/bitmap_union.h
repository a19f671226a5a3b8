// SPDX-License-Identifier: Apache-2.0
//
// The union of the ranks' bitmaps, in two rounds: an all-to-all gives each rank its n-th of all
// bitmaps, which it merges by OR; an all-gather gives the merged parts to all.
#ifndef INCCL_REDUCE_BITMAP_UNION_H_
#define INCCL_REDUCE_BITMAP_UNION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "reduce/reducer.h"

namespace inccl {

class BitmapUnion {
 public:
  static constexpr int kRounds = 2;

  // `extra`: words that each rank adds to its merged part.
  explicit BitmapUnion(uint64_t bits, size_t extra = 0) : bits_(bits), extra_(extra) {}

  void Begin(int nranks) { ranks_ = static_cast<size_t>(nranks); }
  InnerCall Call(int round) const;
  // Round 0. Returns the words of this rank's bitmap, all zero, for the caller to set.
  std::span<uint32_t> MakeBitmap(std::vector<std::byte>* out) const;
  void Merge(std::span<const std::byte> parts);
  // Round 1. Returns the extra words, for the caller to set.
  std::span<uint32_t> MakeMerged(std::vector<std::byte>* out) const;
  // Sets *members to the numbers of the bits that some rank has set, ascending. Errors name
  // `method`.
  Status Read(std::span<const std::byte> gathered, const char* method,
              std::vector<uint32_t>* members) const;
  std::span<const uint32_t> Extra(std::span<const std::byte> gathered, size_t rank) const;

 private:
  // 32-bit words that a rank merges.
  size_t SegmentWords() const { return ((bits_ + 31) / 32 + ranks_ - 1) / ranks_; }

  const uint64_t bits_;
  const size_t extra_;
  size_t ranks_ = 1;
  std::vector<uint32_t> segment_;  // merged by this rank
};

}  // namespace inccl

#endif  // INCCL_REDUCE_BITMAP_UNION_H_
