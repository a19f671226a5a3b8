// SPDX-License-Identifier: Apache-2.0
//
// Counts what the calling thread asks of the kernel, whichever way it asks: a seccomp filter turns
// every system call into a signal, whose handler counts the call and makes it. Waiting
// (sched_yield, futex) and reading the clock pass uncounted. For the rest of the thread's life.
// Linux on x86-64 only; not together with sanitizers.
#ifndef INCCL_TESTS_SUPPORT_KERNEL_CALLS_H_
#define INCCL_TESTS_SUPPORT_KERNEL_CALLS_H_

#include <cstdint>
#include <string>

namespace inccl::test {

class KernelCalls {
 public:
  // False: this system does not let the thread filter itself; nothing is counted.
  static bool StartCounting();
  // Since the last Reset.
  static uint64_t Count();
  // Their numbers, "9 11 11 "; the first few.
  static std::string Numbers();
  static void Reset();
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_KERNEL_CALLS_H_
