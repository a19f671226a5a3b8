// SPDX-License-Identifier: Apache-2.0
//
// The two directions of a link: servers of a fixed rate. The egress port reserves time ahead, the
// ingress port assigns it afterwards. Both count time in 1/1024 ns since an epoch (enough for 104
// days), so a few bytes are not rounded to whole nanoseconds; returned times are rounded up.
#ifndef INCCL_TRANSPORT_EMULATED_PORTS_H_
#define INCCL_TRANSPORT_EMULATED_PORTS_H_

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace inccl::emulated {

class PortClock {
 public:
  PortClock(double gbps, Time epoch);
  int64_t Cost(uint64_t bytes) const;
  int64_t FromTime(Time time) const { return (time - epoch_) * kUnits; }
  Time ToTime(int64_t units) const { return epoch_ + (units + kUnits - 1) / kUnits; }

 private:
  static constexpr int64_t kUnits = 1024;
  double units_per_byte_;
  Time epoch_;
};

// Towards the network: first in, first out.
class EgressPort {
 public:
  EgressPort(double gbps, Time epoch) : clock_(gbps, epoch) {}
  // Sends `bytes` after all earlier reservations and not before `now`. Returns when the last byte
  // is out.
  Time Reserve(Time now, uint64_t bytes);
  // Sends a few bytes immediately, which delays later reservations by the same time.
  Time ReserveFirst(Time now, uint64_t bytes);

 private:
  PortClock clock_;
  int64_t free_ = 0;
};

// From the network: the slice whose last byte arrives first passes first. Bytes that arrive while
// the port is idle pass at once, even if the rest of their slice is still to come.
class IngressPort {
 public:
  IngressPort(double gbps, Time epoch);
  // A slice of `bytes` arrives at the link's rate, its last byte at `arrival`. Returns when it has
  // passed the port. The caller calls it in order of arrival.
  Time Admit(Time arrival, uint64_t bytes);
  // What Admit would return now; slices admitted before it can only delay it.
  Time Earliest(Time arrival, uint64_t bytes) const;

 private:
  struct Interval {
    int64_t begin, end;
  };
  // The end of a slice that takes all free time from the arrival of its first byte on.
  int64_t Finish(int64_t begin, int64_t cost) const;

  PortClock clock_;
  std::vector<Interval> busy_;  // in order, with gaps between them; the oldest are dropped
};

}  // namespace inccl::emulated

#endif  // INCCL_TRANSPORT_EMULATED_PORTS_H_
