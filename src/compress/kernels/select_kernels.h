// SPDX-License-Identifier: Apache-2.0
//
// The kernels that select elements by magnitude (reduce/select.h), one table per instruction set.
// All tables give the same bits; ScalarKernels() is the reference.
#ifndef INCCL_COMPRESS_KERNELS_SELECT_KERNELS_H_
#define INCCL_COMPRESS_KERNELS_SELECT_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace inccl::select {

// Sums of moments are added by this many partial sums, element i to sum i % kPartials; then the
// upper half of the partial sums is added to the lower one, until one is left.
inline constexpr size_t kPartials = 32;

struct Collected {
  uint32_t* indices;
  float* values;  // may be x
};

struct Moments {
  double sum, squares;
};

struct Kernels {
  // Writes index (first + i) and value of the elements whose bits without the sign, as an integer,
  // exceed `above` (-1: of all), in their order. Returns how many. There is room for `count`.
  size_t (*collect)(const float* x, size_t count, int32_t above, uint32_t first,
                    const Collected& to);
  // The sums of |x| - from and of its square.
  Moments (*moments)(const float* x, size_t count, double from);
};

const Kernels& ScalarKernels();
// The kernels of the instruction set in use (compress/simd.h).
const Kernels& BestKernels();

}  // namespace inccl::select

#endif  // INCCL_COMPRESS_KERNELS_SELECT_KERNELS_H_
