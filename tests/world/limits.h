// SPDX-License-Identifier: Apache-2.0
//
// How slow this build is: limits of time are multiplied by it, sizes shrink.
#ifndef INCCL_TESTS_WORLD_LIMITS_H_
#define INCCL_TESTS_WORLD_LIMITS_H_

#include <cstddef>

namespace inccl::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif
inline constexpr int kSlowness = kSanitized ? 5 : 1;
// That, and how slow the machine is: INCCL_TEST_SLOWNESS, in an emulator.
double Slowness();
// How many of `most` worlds shall run at a time: fewer on a slow machine, so that their ranks join
// within their limits of time.
size_t WorldsAtOnce(size_t most);

// How many times more the machine has to do than there are processors for this process; at least 1.
double Busy();
// How much longer than its limit the library may take before a test calls it late, as many times
// more as the machine is busy. Where a sanitizer looks at everything, time is not what is tested.
inline constexpr double kSlackSeconds = kSanitized ? 20 : 2;
double SlackSeconds();

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_LIMITS_H_
