// SPDX-License-Identifier: Apache-2.0
//
// Selects the elements that a call sends: the same number in every superblock, at positions that
// all ranks derive from the seed. A permutation of the positions is split into slices, one per
// step, so a sweep of as many steps visits every element once. Each sweep has another permutation,
// and every superblock renames the positions by its own map, derived from its number: for any two
// elements of each, the selections of two superblocks are as independent as separately drawn
// permutations.
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
  // Selected elements of a whole superblock.
  uint32_t size() const { return size_; }
  // Writes the selected positions below `count` of a superblock and returns their number. `places`
  // has room for 256. Must not be called if all() is true.
  uint32_t Pick(uint32_t segment, uint64_t superblock, uint32_t count, uint8_t* places) const;

 private:
  std::array<uint8_t, kSuperblock> places_{};  // the first size_ are this step's slice
  uint32_t size_ = kSuperblock;
  uint64_t key_ = 0;
};

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_QSGD_SELECTION_H_
