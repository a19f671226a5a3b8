// SPDX-License-Identifier: Apache-2.0
//
// The engines of one communicator: one for each device whose memory its calls use;
// and the watch over the thread that works with a device.
#ifndef INCCL_COMMUNICATOR_DEVICE_ENGINES_H_
#define INCCL_COMMUNICATOR_DEVICE_ENGINES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "control/loop.h"
#include "device/device.h"
#include "device/runtime.h"
#include "engine/device_engine.h"
#include "stream/stream.h"

namespace inccl {

class DeviceEngines {
 public:
  // Arguments as of DeviceEngine::Create.
  DeviceEngines(Transport* transport, const DeviceEngine::StepBytes& step_bytes)
      : transport_(transport), step_bytes_(step_bytes) {}

  // Any thread; one thread at a time uses an engine.
  Result<DeviceEngine*> Of(int number) {
    const MutexLock lock(&mutex_);
    std::unique_ptr<DeviceEngine>& engine = engines_[number];
    if (engine == nullptr) {
      Device* const device = CurrentDevice();
      if (device == nullptr) return InternalError("a call on a device's memory without a device");
      if (regions_ == nullptr) {
        regions_ = std::make_unique<ImportedRegions>(device, number, transport_);
        first_ = number;
      }
      Result<std::unique_ptr<DeviceEngine>> made =
          DeviceEngine::Create(device, number, transport_, regions_.get(), step_bytes_);
      if (!made.ok()) return made.status();
      engine = *std::move(made);
    }
    return engine.get();
  }

  // Regions of peers are imported for one device, that of the first engine; calls on another device
  // must not use them. Any thread.
  bool Serves(int number) const {
    const int first = first_.load();
    return first < 0 || first == number;
  }
  // The thread that uses the transport calls it before calls on device memory. From then on peers
  // may export device memory to this rank, in any call.
  void Attach() {
    if (attached_ != nullptr) return;
    const MutexLock lock(&mutex_);
    attached_ = regions_.get();
    if (attached_ != nullptr) attached_->Attach();
  }
  // The engine of a call on host memory: one that copies payloads from imported device regions;
  // nullptr if this rank imports none.
  Result<Engine*> ForHost() {
    if (attached_ == nullptr) return static_cast<Engine*>(nullptr);
    Result<DeviceEngine*> engine = Of(attached_->number());
    if (!engine.ok()) return engine.status();
    (*engine)->BeginOnHost();
    return static_cast<Engine*>(*engine);
  }

  // The thread that uses the engines calls it.
  void Drain() {
    for (int number = 0;; ++number) {
      DeviceEngine* const engine = AtOrAfter(&number);
      if (engine == nullptr) return;
      engine->Drain();  // no time limit: waits for the device
    }
  }

 private:
  DeviceEngine* AtOrAfter(int* number) {
    const MutexLock lock(&mutex_);
    auto found = engines_.lower_bound(*number);
    while (found != engines_.end() && found->second == nullptr) ++found;
    if (found == engines_.end()) return nullptr;
    *number = found->first;
    return found->second.get();
  }

  Transport* const transport_;
  const DeviceEngine::StepBytes step_bytes_;
  std::atomic<int> first_{-1};           // device of the first engine
  ImportedRegions* attached_ = nullptr;  // `regions_` after Attach
  Mutex mutex_;                          // taken before the device's mutexes
  // For the first engine's device; outlives the engines.
  std::unique_ptr<ImportedRegions> regions_ INCCL_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<DeviceEngine>> engines_ INCCL_GUARDED_BY(mutex_);
};

// Watches the thread that runs a communicator's calls on device memory. A call of the driver may
// wait for a stream that waits for this thread. Another thread then has to release the stream.
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

#endif  // INCCL_COMMUNICATOR_DEVICE_ENGINES_H_
