// SPDX-License-Identifier: Apache-2.0
//
// Time and clocks. Callers pass the time in, so that tests and the simulator can run on their own
// clock.
#ifndef INCCL_BASE_CLOCK_H_
#define INCCL_BASE_CLOCK_H_

#include <cstdint>
#include <ctime>
#include <limits>

namespace inccl {

using Time = int64_t;  // nanoseconds of a monotonic clock that all processes of a host share
inline constexpr Time kNever = std::numeric_limits<Time>::max();
inline constexpr Time kMicrosecond = 1000;
inline constexpr Time kMillisecond = 1000 * 1000;
inline constexpr Time kSecond = 1000 * 1000 * 1000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  Time Now() const override {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * kSecond + t.tv_nsec;
  }
};

// CLOCK_MONOTONIC.
inline const Clock& SystemClock() {
  static const auto* const clock =
      new MonotonicClock;  // threads may use it while the process exits
  return *clock;
}

}  // namespace inccl

#endif  // INCCL_BASE_CLOCK_H_
