// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace inccl {
namespace {

class MonotonicClock final : public Clock {
 public:
  Time Now() const override {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * kSecond + t.tv_nsec;
  }
};

}  // namespace

const Clock& SystemClock() {
  static const MonotonicClock clock;
  return clock;
}

}  // namespace inccl
