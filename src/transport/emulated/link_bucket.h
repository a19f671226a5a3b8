// SPDX-License-Identifier: Apache-2.0
//
// One direction of a link: a server of fixed rate that is reserved ahead of time.
#ifndef INCCL_TRANSPORT_EMULATED_LINK_BUCKET_H_
#define INCCL_TRANSPORT_EMULATED_LINK_BUCKET_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace inccl::emulated {

// Keeps time in 1/1024 ns since `epoch` (enough for 104 days), so that a reservation of a few bytes
// is not rounded to whole nanoseconds. Returned times are rounded up.
class LinkBucket {
 public:
  LinkBucket(double gbps, Time epoch) : units_per_byte_(8.0 / gbps * kUnits), epoch_(epoch) {}

  // Sends `bytes` after everything reserved so far, not before `now`: when the last byte is
  // through.
  Time Reserve(Time now, uint64_t bytes) {
    free_ = std::max(free_, FromTime(now)) + Cost(bytes);
    return ToTime(free_);
  }
  // Sends `bytes` at once; what is reserved and not yet sent is late by as much.
  Time ReserveFirst(Time now, uint64_t bytes) {
    free_ = std::max(free_, FromTime(now)) + Cost(bytes);
    return ToTime(FromTime(now) + Cost(bytes));
  }
  // Lets `bytes` through that come at the link's rate or slower and whose last one arrives at
  // `arrival`: when the last byte is through. Several streams that arrive at once queue up.
  Time Admit(Time arrival, uint64_t bytes) {
    free_ = std::max(FromTime(arrival), free_ + Cost(bytes));
    return ToTime(free_);
  }
  // What Admit would return.
  Time Earliest(Time arrival, uint64_t bytes) const {
    return ToTime(std::max(FromTime(arrival), free_ + Cost(bytes)));
  }

 private:
  static constexpr int64_t kUnits = 1024;
  int64_t Cost(uint64_t bytes) const {
    return std::llround(static_cast<double>(bytes) * units_per_byte_);
  }
  int64_t FromTime(Time time) const { return (time - epoch_) * kUnits; }
  Time ToTime(int64_t units) const { return epoch_ + (units + kUnits - 1) / kUnits; }

  double units_per_byte_;
  Time epoch_;
  int64_t free_ = 0;  // everything reserved is through
};

}  // namespace inccl::emulated

#endif  // INCCL_TRANSPORT_EMULATED_LINK_BUCKET_H_
