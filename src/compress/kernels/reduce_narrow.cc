// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/reduce_narrow.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "compress/kernels/reduce-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {

ReduceFn FindNarrow(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat16: return FindFloat<NarrowElement<Fp16>>(op);
    case DataType::kBfloat16: return FindFloat<NarrowElement<Bf16>>(op);
    case DataType::kFloat8E4M3: return FindFloat<NarrowElement<Fp8E4m3>>(op);
    default: return FindFloat<NarrowElement<Fp8E5m2>>(op);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(FindNarrow);

ReduceFn FindNarrowReduce(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(FindNarrow)(type, op);
}

}  // namespace inccl
#endif  // HWY_ONCE
