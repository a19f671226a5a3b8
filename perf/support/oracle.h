// SPDX-License-Identifier: Apache-2.0
//
// What a reduction must give, from all ranks' inputs alone.
//
// Integers: exact, modulo 2^bits; an average divides the sum, truncating.
//
// Floats: computed in fp64 in rank order; `slack` bounds how far a correct uncompressed result may
// lie from it, whatever order the ranks are summed in. With u the roundoff of the type (2^-24 for
// fp32, 2^-11 for fp16, 2^-8 for bfloat16), u' = u for fp32 and fp64 and 2^-24 for narrower types,
// which are summed in fp32 inside a step and rounded to the type once per step, k = n - 1 additions
// or multiplications (k = n + 1 for an average: 1/n and the products with it are rounded too):
//
//   g     = (1 + u)^k (1 + u')^k - 1                     Higham, Accuracy and Stability, 4.2
//   sum   : (g + n 2^-53) sum_i |x_i| + n tiny           n 2^-53: the oracle's own error
//   avg   : the same over n
//   prod  : (g + n 2^-53) |product| + n tiny
//   max, min, and everything for n = 1: 0
//
// tiny: the smallest positive value of the type. Where the sum of magnitudes passes the type's
// largest value, an intermediate may overflow: slack is infinite, anything is accepted. Where an
// input is infinite or NaN, `value` is, and the result must be the same.
#ifndef INCCL_PERF_SUPPORT_ORACLE_H_
#define INCCL_PERF_SUPPORT_ORACLE_H_

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "perf/support/inputs.h"

namespace inccl::perf {

struct Oracle {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t period = 1;           // element i of a buffer has the entry i mod period
  std::vector<double> value;     // floats
  std::vector<double> slack;     // floats
  std::vector<uint64_t> bits;    // integers, truncated to the type
  std::vector<bool> non_finite;  // floats: an input is infinite or NaN; empty if none is
};

Oracle MakeOracle(const Inputs& inputs, DataType type, ReduceOp op);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_ORACLE_H_
