// SPDX-License-Identifier: Apache-2.0
//
// The vector kernels of the codecs fp8 and mxfp8. Their bytes must equal those of float_types.h and
// of the scalar code in wire/, which the target "scalar" uses.
#ifndef INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl {

struct Fp8Kernels {
  // Finite values beyond the largest one saturate; infinities become the type's code for them.
  void (*encode)(const float* in, size_t count, std::byte* out);
  // Encodes and decodes, in place.
  void (*round)(float* x, size_t count);
  // Encodes a superblock of mxfp8: the scales of its 8 blocks, then its 256 elements.
  void (*encode_blocks)(const float* in, std::byte* out);
  // Multiplies the decoded elements of a superblock by their blocks' scales, in place.
  void (*unscale_blocks)(const uint8_t* scales, float* x);
  // Encodes and decodes a superblock of mxfp8, in place.
  void (*round_blocks)(float* x);
};

// The kernels of the instruction set in use (compress/simd.h) for kFloat8E4M3 or kFloat8E5M2;
// nullptr if it has none.
const Fp8Kernels* BestFp8Kernels(DataType type);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_
