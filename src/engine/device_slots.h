// SPDX-License-Identifier: Apache-2.0
//
// Registers the memory of a transport's slots with a device, so that the device copies from and to
// slots and kernels access them.
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
  // Both pointers outlive this object.
  DeviceSlots(Device* device, int number, const Transport* transport)
      : device_(device), number_(number), transport_(transport) {}
  ~DeviceSlots();
  DeviceSlots(const DeviceSlots&) = delete;
  DeviceSlots& operator=(const DeviceSlots&) = delete;

  // Registers new slots. Slots that the device refuses cost an extra copy.
  void Update();
  // True if queues may copy from and to this memory.
  bool Copies(const std::byte* host, size_t bytes) { return Find(host, bytes) != nullptr; }
  // The address at which kernels access this memory; nullptr if they cannot.
  std::byte* Reach(const std::byte* host, size_t bytes);

 private:
  // The memory of one Device::Register. A copy must not cross its end, even if another piece
  // follows.
  struct Piece {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    bool registered = false;
    std::byte* address = nullptr;  // of `begin` for kernels; nullptr: none
  };
  const Piece* Find(const std::byte* host, size_t bytes);
  const Piece* Known(const std::byte* host, size_t bytes) const;

  Device* const device_;
  const int number_;
  const Transport* const transport_;
  std::map<const std::byte*, Piece> pieces_;           // by begin
  std::map<const std::byte*, const std::byte*> ends_;  // by begin of a span: its end at last Update
  std::vector<Span> spans_;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_SLOTS_H_
