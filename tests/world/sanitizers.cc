// SPDX-License-Identifier: Apache-2.0
//
// What the runtimes of the sanitizers are told in every test program, however it is started.
// Variables of the environment (TSAN_OPTIONS) come after, and win.
#include "world/sanitizers.h"

#include <atomic>

// intercept_tls_get_addr=0: gcc 12's runtimes take 16 bytes in front of a thread's variables for a
// header of the C library if they happen to lie 16 bytes behind the start of a page, as those of
// UCX's libraries do in one life of 256 under the thread sanitizer, which dies of the size that it
// reads there, and in one of 64 under the address sanitizer, whose search for leaks then does.
#if defined(__SANITIZE_THREAD__)
// die_after_fork: ranks are forked by programs that have had threads.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "second_deadlock_stack=1:die_after_fork=0:intercept_tls_get_addr=0";
}
#endif

#if defined(__SANITIZE_ADDRESS__)
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "intercept_tls_get_addr=0";
}

// What UCX holds until its destructors run, when a process exits with communicators, and what PMIx
// leaks.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libuct.so\nleak:libucp.so\nleak:libpmix.so\n";
}
#endif

namespace inccl::test {
namespace {
std::atomic<bool> leaks_unchecked{false};
}

void ExitsWithThreadsAtWork() { leaks_unchecked = true; }

}  // namespace inccl::test

#if defined(__SANITIZE_ADDRESS__)
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return inccl::test::leaks_unchecked ? 1 : 0;
}
#endif
