// SPDX-License-Identifier: Apache-2.0
//
// Folds arrays: out[i] = ((in0[i] op in1[i]) op in2[i]) ..., in one pass over all inputs to all
// outputs, in the widest vectors of the CPU. The results are bit-identical on every instruction
// set:
//
//   integers   Sum and product wrap modulo 2^bits.
//   floats     fp16, bf16 and 8-bit floats are folded in fp32 and rounded once (float_types.h).
//              A NaN result is the positive quiet NaN without payload (0x7FC00000 for fp32; for
//              narrow types its conversion).
//   max, min   IEEE 754-2019 maximum and minimum: NaN if any input is NaN, +0 above -0.
//   average    The sum of x * scale over the inputs in `scaled` and x over the others. The product
//              is rounded to the element type before it is added, so x * scale counts the same
//              whether it is computed here or by the rank that owns x. A sum of finite floats that
//              rounds beyond the largest number is that number, so an average of finite elements
//              is finite, and what is not finite comes from an input.
//              Integers: only the sum; see DivideIntegers.
//   premulsum  Like the average of floats, with the caller's scale, but may overflow; integers are
//              multiplied by `factor`, modulo 2^bits.
#ifndef INCCL_COMPRESS_KERNELS_REDUCE_H_
#define INCCL_COMPRESS_KERNELS_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace inccl {

inline constexpr int kMaxReduceInputs = 64;
inline constexpr int kMaxReduceOutputs = 64;

// Pointers have the alignment of their elements. An output may have the same address as inputs; it
// must not partly overlap them.
struct ReduceArgs {
  const void* const* in = nullptr;
  int inputs = 0;  // 1..kMaxReduceInputs
  void* const* out = nullptr;
  int outputs = 0;  // 1..kMaxReduceOutputs; all get the same bytes
  size_t count = 0;
  // Bit i: use non-temporal stores for output i if possible, because it is not read soon. They are
  // ordered before later stores of the caller.
  uint64_t streamed = 0;
  // For kPreMulSum and kAvg of floats, bit i: input i is multiplied.
  uint64_t scaled = 0;
  double scale = 1;     // factor of floats; representable in fp32 for fp32 and narrower types
  uint64_t factor = 1;  // factor of integers, kPreMulSum only; its low bits count
};

using ReduceFn = void (*)(const ReduceArgs& args);

// data[i] = data[i] / divisor truncated toward zero, for an integer type and divisor > 0.
void DivideIntegers(DataType type, void* data, size_t count, int divisor);

// The two halves of FindReduce, in separate files so that they compile in parallel.
ReduceFn FindNarrowReduce(DataType type, ReduceOp op);  // fp16, bf16, e4m3, e5m2
ReduceFn FindWideReduce(DataType type, ReduceOp op);    // all others

// The kernel for this CPU, never nullptr. Thread-safe.
inline ReduceFn FindReduce(DataType type, ReduceOp op) {
  const bool narrow = IsFloat(type) && SizeOf(type) < sizeof(float);
  return narrow ? FindNarrowReduce(type, op) : FindWideReduce(type, op);
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_REDUCE_H_
