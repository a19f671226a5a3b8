// SPDX-License-Identifier: Apache-2.0
//
// The engines of one communicator, one for each device whose memory its calls are about.
#ifndef INCCL_DEVICE_ENGINES_H_
#define INCCL_DEVICE_ENGINES_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "device/runtime.h"
#include "device_engine.h"

namespace inccl {

class DeviceEngines {
 public:
  // As DeviceEngine::Create.
  DeviceEngines(const Transport* transport, size_t step_bytes)
      : transport_(transport), step_bytes_(step_bytes) {}

  // Any thread; an engine is used by one at a time.
  Result<DeviceEngine*> Of(int number) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<DeviceEngine>& engine = engines_[number];
    if (engine == nullptr) {
      Device* const device = CurrentDevice();
      if (device == nullptr) return InternalError("a call on a device's memory without a device");
      Result<std::unique_ptr<DeviceEngine>> made =
          DeviceEngine::Create(device, number, transport_, step_bytes_);
      if (!made.ok()) return made.status();
      engine = *std::move(made);
    }
    return engine.get();
  }

  // By the thread that uses them.
  void Drain() {
    for (int number = 0;; ++number) {
      DeviceEngine* const engine = AtOrAfter(&number);
      if (engine == nullptr) return;
      engine->Drain();  // takes as long as the device does
    }
  }

 private:
  DeviceEngine* AtOrAfter(int* number) {
    const std::lock_guard lock(mutex_);
    auto found = engines_.lower_bound(*number);
    while (found != engines_.end() && found->second == nullptr) ++found;
    if (found == engines_.end()) return nullptr;
    *number = found->first;
    return found->second.get();
  }

  const Transport* const transport_;
  const size_t step_bytes_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<DeviceEngine>> engines_;
};

}  // namespace inccl

#endif  // INCCL_DEVICE_ENGINES_H_
