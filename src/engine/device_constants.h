// SPDX-License-Identifier: Apache-2.0
//
// Copies in a device's memory of what never changes, as a codec's tables.
#ifndef INCCL_ENGINE_DEVICE_CONSTANTS_H_
#define INCCL_ENGINE_DEVICE_CONSTANTS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "device/pinned_buffer.h"

namespace inccl {

// Of one engine; one thread at a time. Nothing may use them any more when it ends.
class DeviceConstants {
 public:
  DeviceConstants(Device* device, int number) : device_(device), number_(number), here_(device) {}
  ~DeviceConstants();
  DeviceConstants(const DeviceConstants&) = delete;
  DeviceConstants& operator=(const DeviceConstants&) = delete;

  // Takes the memory that the first ones need.
  Status Prepare() { return Grow(kAtOnce); }
  // As DeviceWork::Constant.
  Result<const std::byte*> On(std::span<const std::byte> bytes,
                              const std::shared_ptr<const void>& owner);

 private:
  static constexpr size_t kAtOnce = size_t{256} << 10;
  struct Known {
    std::shared_ptr<const void> owner;
    std::span<std::byte> copy;  // on the device
  };

  Status Grow(size_t bytes);
  Result<std::byte*> Room(size_t bytes);

  Device* const device_;
  const int number_;
  std::map<const std::byte*, Known> known_;  // by their address here
  std::vector<std::span<std::byte>> free_;
  PinnedBuffer here_;
  std::vector<std::byte*> memory_;  // of the device
  std::byte* next_ = nullptr;       // in the last of it
  size_t left_ = 0;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_CONSTANTS_H_
