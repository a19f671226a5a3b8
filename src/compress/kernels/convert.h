// SPDX-License-Identifier: Apache-2.0
//
// Converts arrays of floating-point elements to and from fp32, in the widest vectors of the CPU.
// The results equal those of float_types.h bit for bit on every instruction set. fp64 rounds to
// nearest, ties to even, and becomes infinity beyond fp32's range. Thread-safe.
//
// `type` is a floating-point type (IsFloat). `in` and `out` have the alignment of their elements
// and do not overlap, or, for fp32, are the same.
#ifndef INCCL_COMPRESS_KERNELS_CONVERT_H_
#define INCCL_COMPRESS_KERNELS_CONVERT_H_

#include <cstddef>

#include "base/types.h"

namespace inccl {

void ToFloat(DataType type, const void* in, float* out, size_t n);
void FromFloat(DataType type, const float* in, void* out, size_t n);
// FromFloat followed by ToFloat, in place; for fp16 and bf16.
void RoundTo(DataType type, float* x, size_t n);
// The type's largest number; fp64: that of fp32.
float LargestOf(DataType type);
// Numbers beyond `largest`, but not beyond `reach`, become `largest`, in place.
void SaturateTo(float largest, float reach, float* x, size_t n);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_CONVERT_H_
