// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one collective on one rank. Whatever needs more of a call derives from it.
#ifndef INCCL_BASE_COLLECTIVE_ARGS_H_
#define INCCL_BASE_COLLECTIVE_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl {

struct CollectiveArgs {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scalar scalar{};  // kPreMulSum: factor of this rank's elements; the ranks' may differ
  int nranks = 1;
  int rank = 0;
  int root = 0;
  uint64_t count = 0;           // elements of one vector (SegmentsOf)
  uint64_t seed = 0, step = 0;  // of a codec's random numbers

  size_t bytes() const { return count * SizeOf(type); }  // of one vector
};

}  // namespace inccl

#endif  // INCCL_BASE_COLLECTIVE_ARGS_H_
