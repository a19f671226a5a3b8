// SPDX-License-Identifier: Apache-2.0
//
// Watches the thread that runs a communicator's calls on device memory. A call of the driver may
// wait for a stream that waits for this thread. Another thread then has to release the stream.
#ifndef INCCL_COMMUNICATOR_DRIVER_WATCH_H_
#define INCCL_COMMUNICATOR_DRIVER_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "control/loop.h"
#include "device/device.h"
#include "stream/stream.h"

namespace inccl {

class DriverWatch {
 public:
  // `on_stuck`: the thread has been in one call of the driver for at least `limit`(). The control
  // thread calls it, once.
  DriverWatch(std::function<Time()> limit, std::function<void(Time stuck)> on_stuck)
      : member_(std::make_shared<Member>(std::move(limit), std::move(on_stuck))) {}
  // Afterwards on_stuck neither runs nor begins.
  ~DriverWatch();
  DriverWatch(const DriverWatch&) = delete;
  DriverWatch& operator=(const DriverWatch&) = delete;

  // Watches the calling thread's calls of this device's driver while it lives. nullptr: none.
  class Use {
   public:
    Use(DriverWatch* watch, Device* device) : watch_(watch), device_(device) {
      if (device_ != nullptr) watch_->Begin(device_);
    }
    ~Use() {
      if (device_ != nullptr) watch_->End(device_);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    DriverWatch* const watch_;
    Device* const device_;
  };

 private:
  struct Member final : public control::Member {
    Member(std::function<Time()> longest, std::function<void(Time)> report)
        : limit(std::move(longest)), on_stuck(std::move(report)) {}
    void OnEvents(uint32_t /*tag*/, uint32_t /*events*/) override {}
    void OnWake() override {}
    Time OnTime(Time now, Time late) override;
    Time NextLook(Time now) const;

    const std::function<Time()> limit;
    const std::function<void(Time)> on_stuck;
    std::atomic<uint64_t> calls{0};  // see Device::CountCalls
    Mutex mutex;
    bool ended INCCL_GUARDED_BY(mutex) = false;
    bool in_use INCCL_GUARDED_BY(mutex) = false;
    bool asleep INCCL_GUARDED_BY(mutex) = true;  // the control thread does not look
    bool found INCCL_GUARDED_BY(mutex) = false;
    Standstill standstill INCCL_GUARDED_BY(mutex);
  };

  void Begin(Device* device);
  void End(Device* device);

  const std::shared_ptr<Member> member_;
  uint64_t number_ = 0;  // of the member in the control loop; 0: it is not there yet
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_DRIVER_WATCH_H_
