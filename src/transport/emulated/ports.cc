// SPDX-License-Identifier: Apache-2.0
#include "transport/emulated/ports.h"

#include <algorithm>
#include <cmath>

namespace inccl::emulated {
namespace {

constexpr size_t kIntervals = 256;  // more than the gaps within the duration of one slice

}  // namespace

PortClock::PortClock(double gbps, Time epoch)
    : units_per_byte_(8.0 / gbps * kUnits), epoch_(epoch) {}

int64_t PortClock::Cost(uint64_t bytes) const {
  return std::llround(static_cast<double>(bytes) * units_per_byte_);
}

Time EgressPort::Reserve(Time now, uint64_t bytes) {
  free_ = std::max(free_, clock_.FromTime(now)) + clock_.Cost(bytes);
  return clock_.ToTime(free_);
}

Time EgressPort::ReserveFirst(Time now, uint64_t bytes) {
  free_ = std::max(free_, clock_.FromTime(now)) + clock_.Cost(bytes);
  return clock_.ToTime(clock_.FromTime(now) + clock_.Cost(bytes));
}

IngressPort::IngressPort(double gbps, Time epoch) : clock_(gbps, epoch) {
  busy_.reserve(kIntervals + 1);
}

int64_t IngressPort::Finish(int64_t begin, int64_t cost) const {
  auto next = std::partition_point(busy_.begin(), busy_.end(),
                                   [&](const Interval& interval) { return interval.end <= begin; });
  int64_t at = begin;
  for (; next != busy_.end() && next->begin - at < cost; ++next) {
    cost -= std::max<int64_t>(0, next->begin - at);
    at = next->end;
  }
  return at + cost;
}

Time IngressPort::Earliest(Time arrival, uint64_t bytes) const {
  const int64_t cost = clock_.Cost(bytes);
  return std::max(arrival, clock_.ToTime(Finish(clock_.FromTime(arrival) - cost, cost)));
}

Time IngressPort::Admit(Time arrival, uint64_t bytes) {
  const int64_t cost = clock_.Cost(bytes);
  Interval taken{clock_.FromTime(arrival) - cost, 0};
  taken.end = Finish(taken.begin, cost);
  const Time through = std::max(arrival, clock_.ToTime(taken.end));
  // The slice fills all gaps from its first byte to its end, so this merges all intervals it
  // touches.
  const auto first =
      std::partition_point(busy_.begin(), busy_.end(),
                           [&](const Interval& interval) { return interval.end < taken.begin; });
  auto last = first;
  for (; last != busy_.end() && last->begin <= taken.end; ++last) {
    taken.begin = std::min(taken.begin, last->begin);
    taken.end = std::max(taken.end, last->end);
  }
  busy_.insert(busy_.erase(first, last), taken);
  if (busy_.size() > kIntervals) busy_.erase(busy_.begin());
  return through;
}

}  // namespace inccl::emulated
