// SPDX-License-Identifier: Apache-2.0
//
// The kernels of HBI against the CPU's scalar reference (hbi/slice.h), byte for byte, on whatever
// runs them: random slices of random plans, every step of a compressed call.
#ifndef INCCL_TESTS_SUPPORT_KERNEL_SLICES_H_
#define INCCL_TESTS_SUPPORT_KERNEL_SLICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/slice.h"
#include "support/kernel_target.h"

namespace inccl::test {

// One slice of a call of n ranks; all of what kernels and reference work on.
struct SliceCase {
  hbi::Config config;
  int nranks = 2;
  DataType type = DataType::kFloat32;
  bool average = false;
  uint32_t count = 1;
  uint32_t misaligned = 0;  // bytes by which elements miss an address aligned to 16
  bool planned = true;      // levels as the plan has them, else any for any superblock
  std::string Description() const;
};

// n and levels of any width, all types, lengths with and without tails.
SliceCase RandomSlice(Rng* rng, uint32_t most_elements);

// Fails the test where a byte differs. Every step once: side words, encode, encode and add along a
// ring of all ranks, sums of sums, decode, the fold of an owner with all outputs, and of its parts.
// `kernels`: whose work is right.
void CheckSlice(KernelTarget* target, const SliceCase& slice, Rng* rng,
                const hbi::Kernels& kernels = hbi::ScalarKernels());

// Small slices of every width that a sum can have, and every step from one width to the next.
void CheckEveryWidth(KernelTarget* target, Rng* rng);

// The casts against the codecs themselves (whose instruction set is for the caller to choose):
// every exponent, every code, lengths with tails.
void CheckCasts(KernelTarget* target, Rng* rng);

// Side words of all exponents and of mantissas around the five thresholds, of every type.
void CheckSideWords(KernelTarget* target, Rng* rng);

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_KERNEL_SLICES_H_
