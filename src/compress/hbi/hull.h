// SPDX-License-Identifier: Apache-2.0
//
// Which levels are worth having: the lower convex hull of (cost, error) over all choices of levels
// (in an all-reduce pairs: for the sum and for the all-gather), and from which scale on each is
// taken. Depends on the collective, n and the options only. fp64, without contraction, identical
// everywhere.
#ifndef INCCL_COMPRESS_HBI_HULL_H_
#define INCCL_COMPRESS_HBI_HULL_H_

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "compress/hbi/config.h"

namespace inccl::hbi {

struct HullPoint {
  uint32_t cost = 0;       // bits per element over the hops of a plan (Hops)
  uint16_t k = 0, k2 = 0;  // levels of the sum and of the all-gather; 0, 0: dropped
  int32_t threshold = 0;   // taken where a superblock's exponent exceeds the plan's delta by this,
                           // in quarter octaves; ascending
};

// The hops whose bits a plan counts: n - 1, in an all-reduce each of two phases; of an all-gather,
// where every hop of a segment carries the same bytes, one.
constexpr uint32_t Hops(Collective collective, int nranks) {
  return collective == Collective::kAllGather ? 1 : static_cast<uint32_t>(nranks) - 1;
}

// n >= 2, 2 n < 65536; all-reduce, reduce-scatter or all-gather, the last two with k2 = 0.
// Ascending in cost; the first point is the dropped superblock, unless `unbiased`: then the one of
// the least cost.
std::vector<HullPoint> BuildHull(Collective collective, int nranks, const Config& config);

// Bits per element over the hops of a sum of k levels (of its groups: k2) in the algorithm that
// `bits` counts, scale codes excepted.
uint32_t SumCost(Collective collective, int nranks, const Config& config, uint32_t k, uint32_t k2);
// How many of these hops carry scale codes of the sum's own.
uint32_t CodedHops(Collective collective, int nranks, const Config& config);

// What a superblock may cost, in eighths of a bit per element over the hops of a plan, for what
// `bits` leaves beside scale codes; negative where that is less than nothing.
int64_t BudgetOfSuperblock8(Collective collective, int nranks, const Config& config);
// The smallest bits8 with which every superblock can have K = 1.
uint32_t LeastUnbiasedBits8(Collective collective, int nranks, const Config& config);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_HULL_H_
