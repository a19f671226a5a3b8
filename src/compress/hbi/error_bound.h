// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the absolute error of an element. docs/format.md ("Errors") has the derivation; all
// bounds hold for every input, not only on average.
#ifndef INCCL_COMPRESS_HBI_ERROR_BOUND_H_
#define INCCL_COMPRESS_HBI_ERROR_BOUND_H_

#include <cstdint>

#include "base/types.h"
#include "compress/hbi/plan.h"

namespace inccl::hbi {

// The bound for elements of a call's result in superblocks with `point` whose largest agreed code
// is at most `top`, or that are all zero or poisoned: the distance from the exact sum (or average)
// of the ranks' elements, in an all-gather from the sender's element. Infinite if the result may
// leave the range of fp32 or of the type, or is NaN.
double ErrorBound(const Planner& planner, const Point& point, uint8_t top, DataType type,
                  ReduceOp op);

// Of the result in fp32, over the contributions of a sum times the largest magnitude of the
// superblock over the ranks (in an all-gather of the sender alone); for superblocks whose largest
// magnitude is within the fine steps of the scales, 2^-30 to 2^10 (with rht to 2^6, for it grows).
double RelativeErrorBound(const Planner& planner, const Point& point);

// Where a call's magnitudes lie whose largest agreed code is `top`. Inside, scales are an octave
// apart or less; above, where sums count too, 17 octaves, and below 8.
enum class RangeSide : uint8_t { kInside, kAbove, kBelow };
RangeSide SideOf(const Planner& planner, uint8_t top);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ERROR_BOUND_H_
