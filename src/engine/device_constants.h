// SPDX-License-Identifier: Apache-2.0
//
// Copies of constant data, such as a codec's tables, in a device's memory.
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

// Belongs to one engine; one thread at a time. No kernel may use the copies when this is destroyed.
class DeviceConstants {
 public:
  DeviceConstants(Device* device, int number) : device_(device), number_(number), here_(device) {}
  ~DeviceConstants();
  DeviceConstants(const DeviceConstants&) = delete;
  DeviceConstants& operator=(const DeviceConstants&) = delete;

  // Allocates memory for the first copies.
  Status Prepare() { return Grow(kAtOnce); }
  // See DeviceWork::Constant.
  Result<const std::byte*> On(std::span<const std::byte> bytes,
                              const std::shared_ptr<const void>& owner);

 private:
  static constexpr size_t kAtOnce = size_t{256} << 10;
  struct Known {
    std::shared_ptr<const void> owner;
    std::span<std::byte> copy;  // in device memory
  };

  Status Grow(size_t bytes);
  Result<std::byte*> Room(size_t bytes);

  Device* const device_;
  const int number_;
  std::map<const std::byte*, Known> known_;  // by host address
  std::vector<std::span<std::byte>> free_;
  PinnedBuffer here_;
  std::vector<std::byte*> memory_;  // allocations on the device
  std::byte* next_ = nullptr;       // free part of the last allocation
  size_t left_ = 0;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_CONSTANTS_H_
