// SPDX-License-Identifier: Apache-2.0
//
// Seconds on the monotonic clock, comparable between processes.
#ifndef INCCL_TESTS_WORLD_CLOCK_H_
#define INCCL_TESTS_WORLD_CLOCK_H_

#include <ctime>

namespace inccl::test {

inline double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_CLOCK_H_
