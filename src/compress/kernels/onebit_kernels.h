// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the codec onebit for one superblock, one table per instruction set. All tables
// give the same bits; ScalarKernels() is the reference.
#ifndef INCCL_COMPRESS_KERNELS_ONEBIT_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_ONEBIT_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::onebit {

inline constexpr size_t kSignBytes =
    32;  // of a superblock; bit i % 8 of byte i / 8 is of element i
// A block's magnitudes are added in fp32 by this many partial sums, element i to sum i % kPartials;
// then the upper half of the partial sums is added to the lower one, until one is left.
inline constexpr size_t kPartials = 32;

struct Kernels {
  // Writes the sign bits and, for each block of `block` elements (a multiple of 32 that divides
  // 256), the sum of its magnitudes.
  void (*encode)(const float* x, size_t block, uint8_t* signs, float* sums);
  // sum[i] += scale of the block, or -= where the sign bit is set. `first`: sum[i] counts as 0.
  void (*add)(const uint8_t* signs, const float* scales, size_t block, bool first, float* sum);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::onebit

#endif  // INCCL_COMPRESS_KERNELS_ONEBIT_KERNELS_H_
