// SPDX-License-Identifier: Apache-2.0
#include "device_regions.h"

#include <iterator>

#include "base/log.h"

namespace inccl {

// The transport gives back what it has opened.
DeviceRegions::~DeviceRegions() {
  if (attached_) transport_->SetRegionOpener(nullptr);
}

void DeviceRegions::Attach() {
  if (attached_) return;
  attached_ = true;
  transport_->SetRegionOpener(this);
}

bool DeviceRegions::Holds(const std::byte* memory, size_t bytes) const {
  const auto after = opened_.upper_bound(memory);
  if (after == opened_.begin()) return false;
  const auto& [begin, opened] = *std::prev(after);
  const auto offset = static_cast<size_t>(memory - begin);
  return offset <= opened.bytes && bytes <= opened.bytes - offset;
}

std::byte* DeviceRegions::Open(const Region::Handle& handle, size_t bytes) {
  Result<std::byte*> memory = device_->Open(number_, handle);
  if (!memory.ok()) {
    Log(LogLevel::kInfo, LogSubsystem::kTransport,
        "device {} does not reach {} bytes that a peer has on its device, which therefore come "
        "through slots: {}",
        number_, bytes, memory.status().message());
    return nullptr;
  }
  Log(LogLevel::kInfo, LogSubsystem::kTransport,
      "device {} reads {} bytes that a peer has on its device where they lie", number_, bytes);
  Opened& opened = opened_[*memory];
  opened.bytes = bytes;
  ++opened.times;
  return *memory;
}

void DeviceRegions::Close(std::byte* data) {
  device_->Close(number_, data);
  const auto found = opened_.find(data);
  if (found != opened_.end() && --found->second.times == 0) opened_.erase(found);
}

}  // namespace inccl
