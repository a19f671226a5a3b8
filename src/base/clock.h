// SPDX-License-Identifier: Apache-2.0
//
// Time is passed in: nothing below the composition root reads it by itself, so a simulator can own
// it.
#ifndef INCCL_BASE_CLOCK_H_
#define INCCL_BASE_CLOCK_H_

#include <cstdint>
#include <limits>

namespace inccl {

using Time = int64_t;  // nanoseconds on a monotonic clock, comparable between processes of one host
inline constexpr Time kNever = std::numeric_limits<Time>::max();
inline constexpr Time kMicrosecond = 1000;
inline constexpr Time kMillisecond = 1000 * 1000;
inline constexpr Time kSecond = 1000 * 1000 * 1000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
};

// CLOCK_MONOTONIC.
const Clock& SystemClock();

}  // namespace inccl

#endif  // INCCL_BASE_CLOCK_H_
