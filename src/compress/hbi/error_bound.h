// SPDX-License-Identifier: Apache-2.0
//
// What the absolute error of an element can be at most. The derivation is in docs/format.md
// ("Errors"); all bounds hold for every input, not on average.
#ifndef INCCL_COMPRESS_HBI_ERROR_BOUND_H_
#define INCCL_COMPRESS_HBI_ERROR_BOUND_H_

#include "base/types.h"
#include "compress/hbi/plan.h"

namespace inccl::hbi {

// Of any element of the result of a call, in blocks whose agreed code is at most `top` in
// superblocks that got `point`: its distance from the sum (or average) of the ranks' elements, in
// an all-gather from the sender's element. Infinite where the result may leave the range of fp32 or
// of the type.
double ErrorBound(const Planner& planner, const Point& point, uint8_t top, DataType type,
                  ReduceOp op);

// What is known of a sum as it is coded.
struct UnfinishedBound {
  double error = 0;  // of an element
  double sum = 0;    // largest magnitude of one
  double divisor = 1;
  bool rotated = false;
  DataType type = DataType::kFloat32;
};
// The bound on the error of the caller's elements.
double FinishBound(const UnfinishedBound& so_far);

// Of one quantization of values with this plan: to nearest, or with a hash.
double QuantizationError(const Planner& planner, const PlanSummary& plan, bool nearest);

// As RelativeErrorBound, for the policies D and R: payloads of `sums`, in R re-coded at `hops`
// hops, a result of `results`.
double RelativePartErrorBound(const Planner& sums, const Planner& results, int hops);

// Of the result in fp32, over the contributions of a sum times the largest magnitude of the block
// (with rht of the superblock) over the ranks (in an all-gather of the sender alone); for blocks
// whose largest magnitude is within the fine steps of the scales, 2^-34 to 2^16 (with rht to 2^12,
// for it grows).
double RelativeErrorBound(const Planner& planner, const Point& point);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ERROR_BOUND_H_
