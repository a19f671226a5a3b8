// SPDX-License-Identifier: Apache-2.0
//
// Randomized tests take their seed from here; it is printed, and INCCL_TEST_SEED replays it.
#ifndef INCCL_TESTS_SUPPORT_SEED_H_
#define INCCL_TESTS_SUPPORT_SEED_H_

#include <cstdint>

namespace inccl::test {

// INCCL_TEST_SEED if it is set, else a new seed for each process; printed to stdout once.
uint64_t TestSeed();

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_SEED_H_
