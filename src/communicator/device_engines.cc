// SPDX-License-Identifier: Apache-2.0
#include "communicator/device_engines.h"

#include <algorithm>
#include <utility>

namespace inccl {

DriverWatch::~DriverWatch() {
  if (number_ == 0) return;
  {
    const MutexLock lock(&member_->mutex);
    member_->ended = true;
  }
  control::Loop::Get().Leave(number_);
}

// Nobody watches if the control thread cannot start.
void DriverWatch::Begin(Device* device) {
  if (number_ == 0) {
    const Result<uint64_t> joined = control::Loop::Get().Join(member_);
    if (!joined.ok()) return;
    number_ = *joined;
  }
  bool wake = false;
  {
    const MutexLock lock(&member_->mutex);
    member_->in_use = true;
    std::swap(wake, member_->asleep);
  }
  device->CountCalls(&member_->calls);
  const Time now = SystemClock().Now();
  if (wake) control::Loop::Get().CallAt(number_, member_->NextLook(now));
}

void DriverWatch::End(Device* device) {
  device->CountCalls(nullptr);
  const MutexLock lock(&member_->mutex);
  member_->in_use = false;
}

Time DriverWatch::Member::NextLook(Time now) const {
  return now + std::clamp(limit() / 8, kMillisecond, 500 * kMillisecond);
}

Time DriverWatch::Member::OnTime(Time now, Time /*late*/) {
  const MutexLock lock(&mutex);
  if (ended) return kNever;
  if (!in_use) {
    asleep = true;
    return kNever;
  }
  const uint64_t count = calls.load(std::memory_order_relaxed);
  if (count % 2 == 0) {  // in no call
    standstill = Standstill();
  } else if (const Time stuck = standstill.Look(count); stuck >= limit() && !found) {
    found = true;
    on_stuck(stuck);
  }
  return NextLook(now);
}

}  // namespace inccl
