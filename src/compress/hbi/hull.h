// SPDX-License-Identifier: Apache-2.0
//
// Which levels are worth having: the lower convex hull of (cost, error) over all pairs of levels
// for the sum and for the all-gather, and from which scale on each is taken. Depends on n and the
// options only. fp64, without contraction, identical everywhere.
#ifndef INCCL_COMPRESS_HBI_HULL_H_
#define INCCL_COMPRESS_HBI_HULL_H_

#include <cstdint>
#include <vector>

#include "compress/hbi/config.h"

namespace inccl::hbi {

struct HullPoint {
  uint32_t cost = 0;       // bits per element over the n - 1 hops of both phases
  uint16_t k = 0, k2 = 0;  // levels of the sum and of the all-gather; 0, 0: dropped
  int32_t threshold = 0;   // taken where a superblock's exponent exceeds the plan's delta by this,
                           // in quarter octaves; ascending
};

// n >= 2, 2 n < 65536. Ascending in cost; the first point is the dropped superblock.
std::vector<HullPoint> BuildHull(int nranks, Reference reference);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_HULL_H_
