// SPDX-License-Identifier: Apache-2.0
#include "device_stream.h"

#include <sched.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/clock.h"

namespace inccl {
namespace {

// What is waited for is often some kernels away: first looked at often, then seldom.
constexpr Time kLookOften = 200 * kMicrosecond;
constexpr useconds_t kSeldom = 20;

}  // namespace

Result<uint64_t> DeviceStream::Enter() {
  const std::lock_guard lock(mutex_);  // the stream's order is that of the places
  left_.Take();
  Status status = CatchOutOfMemory([&] { return order_->Append(static_cast<uint32_t>(entered_)); });
  if (status.ok()) return entered_++;
  left_.Untake();
  return status;
}

bool DeviceStream::WaitTurn(uint64_t place, const std::function<bool()>& give_up) {
  const auto number = static_cast<uint32_t>(place);
  const Time start = SystemClock().Now();
  while (!order_->Reached(number)) {
    if (SystemClock().Now() - start < kLookOften) {
      sched_yield();
      continue;
    }
    if (give_up()) return false;
    usleep(kSeldom);
  }
  return true;
}

void DeviceStream::Leave(uint64_t place, const Status& /*status*/) {
  const std::lock_guard lock(mutex_);
  left_.Leave(place);
  // A place that was left before its turn lets nothing pass that is still running.
  if (left_.count() > 0) order_->Finish(static_cast<uint32_t>(left_.count() - 1));
}

Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream) {
  Result<uint64_t> id = device->IdOf(stream);
  if (!id.ok()) return id.status();
  static std::mutex mutex;
  // Calls may be under way when the process ends.
  static auto* const streams = new std::map<std::pair<Device*, uint64_t>, std::shared_ptr<Stream>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Stream>& found = (*streams)[{device, *id}];
  if (found == nullptr) {
    Result<std::unique_ptr<DeviceOrder>> order = device->OrderOf(stream);
    if (!order.ok()) return order.status();
    found = std::make_shared<DeviceStream>(*std::move(order));
  }
  return found;
}

}  // namespace inccl
