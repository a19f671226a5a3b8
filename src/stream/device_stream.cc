// SPDX-License-Identifier: Apache-2.0
#include "stream/device_stream.h"

#include <sched.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/clock.h"

namespace inccl {
namespace {

// The awaited work of the device often takes only a few kernels, so the thread polls often at
// first, then rarely.
constexpr Time kLookOften = 200 * kMicrosecond;
constexpr useconds_t kSeldom = 20;

}  // namespace

// Stream calls it for one position at a time, so positions are in the order of the device's stream.
Result<uint64_t> DeviceStream::EnqueueNext() {
  {
    const MutexLock lock(&mutex_);
    completed_.Take();
  }
  Status status =
      CatchOutOfMemory([&] { return order_->Append(static_cast<uint32_t>(enqueued_)); });
  if (status.ok()) return enqueued_++;
  const MutexLock lock(&mutex_);
  completed_.Untake();
  return status;
}

bool DeviceStream::WaitFor(uint64_t position, const GiveUp& give_up) {
  const auto number = static_cast<uint32_t>(position);
  const Time start = SystemClock().Now();
  Standstill standstill;
  while (!order_->Reached(number)) {
    if (SystemClock().Now() - start < kLookOften) {
      sched_yield();
      continue;
    }
    uint64_t left = 0;
    {
      const MutexLock lock(&mutex_);
      left = completed_.count();
    }
    const Time stalled = standstill.Look(left);
    if (give_up(left < position ? stalled : 0)) return false;
    usleep(kSeldom);
  }
  return true;
}

void DeviceStream::CompletePosition(uint64_t position, const Status& /*status*/) {
  const MutexLock lock(&mutex_);
  completed_.Complete(position);
  // A position that completes before earlier ones must not release the device past them.
  if (completed_.count() > 0) order_->Finish(static_cast<uint32_t>(completed_.count() - 1));
}

Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream) {
  Result<uint64_t> id = device->IdOf(stream);
  if (!id.ok()) return id.status();
  static Mutex mutex;
  // Never destroyed, because calls may be in progress when the process ends.
  static auto* const streams INCCL_PT_GUARDED_BY(mutex) =
      new std::map<std::pair<Device*, uint64_t>, std::shared_ptr<Stream>>;
  const MutexLock lock(&mutex);
  std::shared_ptr<Stream>& found = (*streams)[{device, *id}];
  if (found == nullptr) {
    Result<std::unique_ptr<DeviceOrder>> order = device->OrderOf(stream);
    if (!order.ok()) return order.status();
    found = std::make_shared<DeviceStream>(*std::move(order));
  }
  return found;
}

}  // namespace inccl
