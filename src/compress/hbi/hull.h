// SPDX-License-Identifier: Apache-2.0
//
// The useful choices of levels: the lower convex hull of (cost, error) over all choices (in an
// all-reduce pairs, for the sum and for the all-gather), and where a plan goes from one to the
// next. It depends only on the collective, n and the options. The arithmetic is in integers but for
// one fp64 product per threshold, so it is identical on all machines.
#ifndef INCCL_COMPRESS_HBI_HULL_H_
#define INCCL_COMPRESS_HBI_HULL_H_

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "compress/hbi/config.h"

namespace inccl::hbi {

struct HullPoint {
  uint32_t cost = 0;       // eighths of a bit per element over the hops of a plan (Hops)
  uint16_t k = 0, k2 = 0;  // levels of the sum and of the all-gather
  int32_t threshold = 0;   // taken if a superblock's energy exponent exceeds the plan's delta by
                           // this, in fifths of an octave; ascending, kAlways of the first one
};
inline constexpr int32_t kAlways = -(1 << 20);

struct Hull {
  std::vector<HullPoint> points;  // ascending in cost
  // Where superblocks may be dropped (cost 0, with an error like any other), the hull goes from
  // there to this point, at this threshold.
  size_t after_dropped = 0;
  int32_t threshold_after_dropped = 0;
};

// The hops whose bits a plan counts: n - 1, in an all-reduce for each of two phases. In an
// all-gather every hop of a segment carries the same bytes, so it counts one.
constexpr uint32_t Hops(Collective collective, int nranks) {
  return collective == Collective::kAllGather ? 1 : static_cast<uint32_t>(nranks) - 1;
}

// For n >= 2, 2 n < 65536 and all-reduce, reduce-scatter or all-gather; the latter two have k2 = 0.
Hull BuildHull(Collective collective, int nranks, const Config& config);

// Half-bits per element over the hops of a sum of k levels (its groups: k2) in the algorithm that
// `bits` counts, without side words.
uint32_t SumHalfBits(Collective collective, int nranks, const Config& config, uint32_t k,
                     uint32_t k2);
// The number of these hops that carry the sum's own side words.
uint32_t CodedHops(Collective collective, int nranks, const Config& config);

// The budget of a superblock, in eighths of a bit per element over the hops of a plan: `bits` minus
// side words. Negative if the side words alone exceed `bits`.
int64_t BudgetOfSuperblock8(Collective collective, int nranks, const Config& config);
// The smallest bits8 for which every superblock can have K = 1.
uint32_t LeastBits8(Collective collective, int nranks, const Config& config);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_HULL_H_
