// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the absolute error of an element. docs/format.md ("Errors") has the derivation; all
// bounds hold for every input, not only on average.
#ifndef INCCL_COMPRESS_HBI_ERROR_BOUND_H_
#define INCCL_COMPRESS_HBI_ERROR_BOUND_H_

#include "base/types.h"
#include "compress/hbi/plan.h"

namespace inccl::hbi {

// The bound for elements of a call's result in blocks whose agreed code is at most `top`, in
// superblocks with `point`: the distance from the exact sum (or average) of the ranks' elements, in
// an all-gather from the sender's element. Infinite if the result may leave the range of fp32 or of
// the type.
double ErrorBound(const Planner& planner, const Point& point, uint8_t top, DataType type,
                  ReduceOp op);

// The bounds of a sum in coded form.
struct UnfinishedBound {
  double error = 0;  // error of an element
  double sum = 0;    // largest magnitude of an element
  double divisor = 1;
  bool rotated = false;
  DataType type = DataType::kFloat32;
};
// The resulting bound on the error of the caller's elements.
double FinishBound(const UnfinishedBound& so_far);

// The error of one quantization with this plan, to nearest or with a hash.
double QuantizationError(const Planner& planner, const PlanSummary& plan, bool nearest);

// RelativeErrorBound for the policies D and R: payloads with the levels of `sums`, with R quantized
// again at `hops` hops, and a result with the levels of `results`.
double RelativePartErrorBound(const Planner& sums, const Planner& results, int hops);

// The error of the result in fp32, relative to the contributions of a sum times the largest
// magnitude of the block (with rht of the superblock) over the ranks (in an all-gather of the
// sender only). It holds for blocks whose largest magnitude is in the range of fine scale steps,
// 2^-34 to 2^16 (with rht to 2^12, because rotation can enlarge it).
double RelativeErrorBound(const Planner& planner, const Point& point);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ERROR_BOUND_H_
