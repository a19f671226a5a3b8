// SPDX-License-Identifier: Apache-2.0
//
// What the codecs fp8 and mxfp8 do, in vectors. The bytes are those of float_types.h and of the
// plain code in wire/, which is what the target "scalar" uses and what these are held to.
#ifndef INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl {

struct Fp8Kernels {
  // Finite values beyond the largest become it; infinities stay what the type has for them.
  void (*encode)(const float* in, size_t count, std::byte* out);
  // What decoding makes of that, in place.
  void (*round)(float* x, size_t count);
  // A superblock of mxfp8: the scales of its 8 blocks, then its 256 elements.
  void (*encode_blocks)(const float* in, std::byte* out);
  // Decoded elements of one, in place: times their blocks' scales.
  void (*unscale_blocks)(const uint8_t* scales, float* x);
  // What decoding makes of encoding, in place.
  void (*round_blocks)(float* x);
};

// Of kFloat8E4M3 or kFloat8E5M2, those of the instruction set in use (compress/simd.h); null: it
// has none.
const Fp8Kernels* BestFp8Kernels(DataType type);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_FP8_KERNELS_H_
