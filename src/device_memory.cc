// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

namespace inccl {

DeviceMemory& DeviceMemory::Instance() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

Result<void*> DeviceMemory::Allocate(Device* device, int number, size_t bytes) {
  Result<std::byte*> memory = device->AllocateOn(number, bytes);
  if (!memory.ok()) return memory.status();
  void* const data = *memory;
  try {
    const std::lock_guard lock(mutex_);
    pieces_[data] = {device, number};
  } catch (...) {
    device->FreeOn(number, *memory);
    throw;
  }
  return data;
}

// The device may wait for all that it does: others need not wait meanwhile.
bool DeviceMemory::Free(void* data) {
  Piece piece{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(data);
    if (found == pieces_.end()) return false;
    piece = found->second;
    pieces_.erase(found);
  }
  piece.device->FreeOn(piece.number, static_cast<std::byte*>(data));
  return true;
}

}  // namespace inccl
