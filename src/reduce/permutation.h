// SPDX-License-Identifier: Apache-2.0
//
// A pseudo-random permutation of [0, size) that computes any place without a table: a Feistel
// network over the next power of two, walked until the place lies in range, then a rotation, which
// makes every place equally likely.
#ifndef INCCL_REDUCE_PERMUTATION_H_
#define INCCL_REDUCE_PERMUTATION_H_

#include <bit>
#include <cstdint>

#include "base/rng.h"

namespace inccl {

class Permutation {
 public:
  // size > 0
  Permutation(uint64_t size, uint64_t key)
      : size_(size),
        key_(Mix64(key)),
        rotation_(Rng(key_).Below(size)),
        low_bits_((static_cast<unsigned>(std::bit_width(size - 1)) + 1) / 2),
        low_mask_((uint64_t{1} << low_bits_) - 1),
        high_mask_((uint64_t{1} << (static_cast<unsigned>(std::bit_width(size - 1)) - low_bits_)) -
                   1) {}

  // The image of place < size.
  uint64_t operator()(uint64_t place) const {
    do {
      place = Shuffle(place);
    } while (place >= size_);
    place += rotation_;
    return place >= size_ ? place - size_ : place;
  }

 private:
  static constexpr uint64_t kRounds = 3;

  uint64_t Shuffle(uint64_t place) const {
    uint64_t low = place & low_mask_, high = place >> low_bits_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      low ^= Mix64(key_ ^ (high << 3 | 2 * round)) & low_mask_;
      high ^= Mix64(key_ ^ (low << 3 | (2 * round + 1))) & high_mask_;
    }
    return high << low_bits_ | low;
  }

  uint64_t size_, key_, rotation_;
  unsigned low_bits_;
  uint64_t low_mask_, high_mask_;
};

}  // namespace inccl

#endif  // INCCL_REDUCE_PERMUTATION_H_
