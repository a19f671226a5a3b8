// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of error feedback (residual/residual.h), in the widest vectors of the CPU. Every
// operation is rounded by itself, products before sums, so the results are bit-identical on every
// instruction set.
#ifndef INCCL_COMPRESS_KERNELS_FEEDBACK_H_
#define INCCL_COMPRESS_KERNELS_FEEDBACK_H_

#include <cstddef>

#include "base/types.h"

namespace inccl {

// x[i] + scale * residual[i], in fp32.
struct Corrected {
  DataType type = DataType::kFloat32;  // of x: fp32, fp16 or bf16
  const void* x = nullptr;
  DataType storage = DataType::kFloat32;  // of the residual: fp32 or bf16
  const void* residual = nullptr;
  float scale = 1;
};

// Writes n sums in their type.
void AddResidual(const Corrected& sums, void* out, size_t n);

// next[i] = kept * residual[i] + added * error, or the error itself with added = 1, in the storage
// type, whose largest number limits it; error = sum - sent[i], or 0 where that is not finite.
// `sent`: nullptr counts as zeros.
void StoreErrors(const Corrected& sums, const float* sent, float kept, float added, void* next,
                 size_t n);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_FEEDBACK_H_
