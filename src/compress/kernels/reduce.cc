// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/reduce.h"

namespace inccl {

ReduceFn FindReduce(DataType type, ReduceOp op) {
  const bool narrow = IsFloat(type) && SizeOf(type) < sizeof(float);
  return narrow ? FindNarrowReduce(type, op) : FindWideReduce(type, op);
}

}  // namespace inccl
