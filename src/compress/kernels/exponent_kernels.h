// SPDX-License-Identifier: Apache-2.0
//
// The vector kernels of the codec lossless for whole superblocks of 256 elements of fp32, bf16 or
// fp16. Their bytes must equal those of the scalar code in lossless/exponent_pack.cc, which the
// target "scalar" uses.
#ifndef INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl::lossless {

struct ExponentKernels {
  // ExponentPacker's Pack and Unpack of 256 elements. `in` starts with neither kRaw nor kZeros.
  uint32_t (*pack)(const std::byte* elements, std::byte* out);
  uint32_t (*unpack)(const std::byte* in, uint64_t bytes, std::byte* elements);
};

// The kernels of the instruction set in use (compress/simd.h); nullptr if it has none for this
// type.
const ExponentKernels* BestExponentKernels(DataType type);

}  // namespace inccl::lossless

#endif  // INCCL_COMPRESS_KERNELS_EXPONENT_KERNELS_H_
