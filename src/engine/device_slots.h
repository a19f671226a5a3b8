// SPDX-License-Identifier: Apache-2.0
//
// Memory of a transport's slots that a device has been told of, so that it copies from and to them
// and kernels reach them.
#ifndef INCCL_ENGINE_DEVICE_SLOTS_H_
#define INCCL_ENGINE_DEVICE_SLOTS_H_

#include <cstddef>
#include <map>
#include <vector>

#include "device/device.h"
#include "transport/transport.h"

namespace inccl {

class DeviceSlots {
 public:
  // Both outlive it.
  DeviceSlots(Device* device, int number, const Transport* transport)
      : device_(device), number_(number), transport_(transport) {}
  ~DeviceSlots();
  DeviceSlots(const DeviceSlots&) = delete;
  DeviceSlots& operator=(const DeviceSlots&) = delete;

  // Tells the device of what is new. What it does not take is done without.
  void Update();
  // True: queues may copy from and to this memory.
  bool Copies(const std::byte* host, size_t bytes) { return Find(host, bytes) != nullptr; }
  // Where kernels reach it; nullptr: nowhere.
  std::byte* Reach(const std::byte* host, size_t bytes);

 private:
  // One call of Device::Register. A copy must not go beyond it, even where another one follows.
  struct Piece {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    bool registered = false;
    std::byte* address = nullptr;  // of `begin`, for kernels; nullptr: none
  };
  const Piece* Find(const std::byte* host, size_t bytes);
  const Piece* Known(const std::byte* host, size_t bytes) const;

  Device* const device_;
  const int number_;
  const Transport* const transport_;
  std::map<const std::byte*, Piece> pieces_;  // by where they begin
  std::map<const std::byte*, const std::byte*>
      ends_;  // of spans: how far they were at the last look
  std::vector<Span> spans_;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_SLOTS_H_
