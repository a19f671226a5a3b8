// SPDX-License-Identifier: Apache-2.0
//
// What reductions and conversions must yield, computed from definitions: floats as ldexp of their
// fields, rounding as a search for the nearest value, integers in 128 bits. Slow and independent of
// the code under test.
#ifndef INCCL_TESTS_SUPPORT_FP_ORACLE_H_
#define INCCL_TESTS_SUPPORT_FP_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace inccl::test {

// The value of a code of fp16, bf16, e4m3 or e5m2, NaN for NaN.
double NarrowValue(DataType type, uint32_t code);

// The code nearest to `value`, ties to the even code, in a narrow type. NaN gives a NaN code that
// has value's sign; which one is not part of the definition.
uint32_t NarrowCode(DataType type, double value);

// The code of the quiet NaN without sign and payload, in any floating-point type; the code of the
// largest number; whether a code is NaN.
uint64_t QuietNan(DataType type);
uint64_t LargestCode(DataType type);
bool IsNanCode(DataType type, uint64_t code);

// One operand of a fold: an element's bits, zero-extended, whether AVG or PREMULSUM scales it, and
// PREMULSUM's factor in the bits of the type.
struct FoldOperand {
  uint64_t bits = 0;
  bool scaled = false;
  uint64_t factor = 0;
};

// ((a op b) op c)... of one element, as identity_codec.h defines it, for nranks ranks: sums of an
// average that round beyond the largest number become that number. `divide`: AVG of integers
// divides. All operands are folded (a single one is not a copy).
uint64_t FoldElement(DataType type, ReduceOp op, const std::vector<FoldOperand>& operands,
                     int nranks, bool divide);

// Elements in memory as bits.
uint64_t LoadBits(DataType type, const void* data, size_t index);
void StoreBits(DataType type, void* data, size_t index, uint64_t bits);

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_FP_ORACLE_H_
