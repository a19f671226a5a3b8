// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

#include <iterator>

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

DeviceShare DeviceMemory::Find(const void* data, size_t bytes) {
  DeviceMemory& all = Instance();
  const std::lock_guard lock(all.mutex_);
  const auto after = all.pieces_.upper_bound(const_cast<void*>(data));
  if (after == all.pieces_.begin()) return {};
  Result<DeviceShare> share = std::prev(after)->second.device->Share(data, bytes);
  return share.ok() ? *share : DeviceShare{};
}

}  // namespace inccl
