// SPDX-License-Identifier: Apache-2.0
//
// The two directions of a link: servers of fixed rate whose time is given out ahead or afterwards.
// They keep time in 1/1024 ns since an epoch (enough for 104 days), so that a few bytes are not
// rounded to whole nanoseconds; times returned are rounded up.
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

// Towards the network: first come, first served.
class EgressPort {
 public:
  EgressPort(double gbps, Time epoch) : clock_(gbps, epoch) {}
  // Sends `bytes` after everything reserved so far, not before `now`: when the last byte is out.
  Time Reserve(Time now, uint64_t bytes);
  // Sends a few bytes at once; what is reserved later is later by as much.
  Time ReserveFirst(Time now, uint64_t bytes);

 private:
  PortClock clock_;
  int64_t free_ = 0;
};

// From the network: whose last byte comes first is through first, and bytes that come while the
// port is idle go through at once, though the rest of their slice is still to come.
class IngressPort {
 public:
  IngressPort(double gbps, Time epoch);
  // A slice of `bytes` comes in at the link's rate, the last byte at `arrival`: when it is through.
  // To be called in order of arrival.
  Time Admit(Time arrival, uint64_t bytes);
  // What Admit would return; others that are admitted before can only make it later.
  Time Earliest(Time arrival, uint64_t bytes) const;

 private:
  struct Interval {
    int64_t begin, end;
  };
  // The slice takes all time that is left from the arrival of its first byte on; the end of that.
  int64_t Finish(int64_t begin, int64_t cost) const;

  PortClock clock_;
  std::vector<Interval> busy_;  // in order, with gaps between them; old ones are forgotten
};

}  // namespace inccl::emulated

#endif  // INCCL_TRANSPORT_EMULATED_PORTS_H_
