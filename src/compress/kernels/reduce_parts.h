// SPDX-License-Identifier: Apache-2.0
//
// The two halves of FindReduce, in separate files so that they compile in parallel.
#ifndef INCCL_COMPRESS_KERNELS_REDUCE_PARTS_H_
#define INCCL_COMPRESS_KERNELS_REDUCE_PARTS_H_

#include "compress/kernels/reduce.h"

namespace inccl {

ReduceFn FindNarrowReduce(DataType type, ReduceOp op);  // fp16, bf16, e4m3, e5m2
ReduceFn FindWideReduce(DataType type, ReduceOp op);    // all others

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_REDUCE_PARTS_H_
