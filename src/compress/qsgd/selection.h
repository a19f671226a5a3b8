// SPDX-License-Identifier: Apache-2.0
//
// Which elements a call is about: of every superblock the same number, in places that all ranks
// draw alike from the seed. A permutation of a superblock's places is cut into slices, one for each
// step; a sweep of as many steps visits every element once. Another sweep has another permutation,
// and every superblock renames the places by a map of its own, drawn from its number: what two
// superblocks select is as unlike as if each had drawn a permutation, for any two elements of each.
#ifndef INCCL_COMPRESS_QSGD_SELECTION_H_
#define INCCL_COMPRESS_QSGD_SELECTION_H_

#include <array>
#include <cstdint>

#include "compress/codec.h"

namespace inccl::qsgd {

class Selection {
 public:
  void Begin(uint64_t seed, uint64_t step, uint32_t selected);
  bool all() const { return size_ == kSuperblock; }
  // Elements of a whole superblock.
  uint32_t size() const { return size_; }
  // The places, below `count`, of a superblock of a segment; returns how many. `places` has room
  // for 256. Not where all() is true.
  uint32_t Pick(uint32_t segment, uint64_t superblock, uint32_t count, uint8_t* places) const;

 private:
  std::array<uint8_t, kSuperblock> places_{};  // the slice: the first size_
  uint32_t size_ = kSuperblock;
  uint64_t key_ = 0;
};

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_QSGD_SELECTION_H_
