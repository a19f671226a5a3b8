// SPDX-License-Identifier: Apache-2.0
//
// A clock that a test sets.
#ifndef INCCL_TESTS_FAKES_MANUAL_CLOCK_H_
#define INCCL_TESTS_FAKES_MANUAL_CLOCK_H_

#include "base/clock.h"

namespace inccl::test {

class ManualClock final : public Clock {
 public:
  explicit ManualClock(Time start = kSecond) : now(start) {}
  Time Now() const override { return now; }
  Time now;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAKES_MANUAL_CLOCK_H_
