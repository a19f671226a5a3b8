// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the codec dither for one superblock, one table per instruction set. All tables
// give the same bits; ScalarKernels() is the reference. Codes are levels with their sign, plus the
// number of levels s: zero is s.
#ifndef INCCL_COMPRESS_KERNELS_DITHER_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_DITHER_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::dither {

// Squares are added in fp64 by this many partial sums, element i to sum i % kPartials; then the
// upper half of the partial sums is added to the lower one, until one is left.
inline constexpr size_t kPartials = 16;

struct Levels {
  uint32_t count = 1;   // s
  bool powers = false;  // level l is 2^(l - s) instead of l / s
};

struct Kernels {
  // For each block of `block` elements (a multiple of 32 that divides 256), the sum of squares.
  void (*squares)(const float* x, size_t block, double* sums);
  // Rounds |x| * factor of the block to one of the two levels around it, at random by a hash of
  // random + i. The factor is s / norm, with powers 1 / norm; what is above the top counts as it.
  void (*encode)(const float* x, uint32_t random, const Levels& levels, const float* factors,
                 size_t block, uint8_t* codes);
  // sum += level * unit of the block; the unit is norm / s, with powers the norm. `first`: sum
  // counts as 0. Returns the largest code; the sums of codes above 2 s do not matter.
  uint32_t (*add)(const uint8_t* codes, const Levels& levels, const float* units, size_t block,
                  bool first, float* sum);
  // Sets the bits of elements that are not zero.
  void (*non_zero)(const uint8_t* codes, uint32_t zero, uint64_t bits[4]);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::dither

#endif  // INCCL_COMPRESS_KERNELS_DITHER_KERNELS_H_
