// SPDX-License-Identifier: Apache-2.0
//
// The kernel of plain reductions against the CPU's (kernels/reduce.h), byte for byte, on whatever
// runs it.
#ifndef INCCL_TESTS_SUPPORT_KERNEL_REDUCE_H_
#define INCCL_TESTS_SUPPORT_KERNEL_REDUCE_H_

#include <cstdint>

#include "base/rng.h"
#include "base/types.h"
#include "support/kernel_target.h"

namespace inccl::test {

// One reduction of random elements, special values among them: with any outputs, in place or not,
// scaled where the operation scales, averages of integers divided or not, at addresses that are
// aligned to vectors, alike or not. Fails the test where a byte differs, or one beside the outputs
// is written.
void CheckReduction(KernelTarget* target, DataType type, ReduceOp op, uint32_t inputs,
                    uint64_t count, Rng* rng);

// Every type and operation, 1 to 9 inputs and as many as there can be; all pairs of elements of 8
// bits, all elements of 16 bits; what is refused.
void CheckReductions(KernelTarget* target, Rng* rng);

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_KERNEL_REDUCE_H_
