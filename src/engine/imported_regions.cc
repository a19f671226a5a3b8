// SPDX-License-Identifier: Apache-2.0
#include "engine/imported_regions.h"

#include <iterator>

#include "base/log.h"

namespace inccl {

ImportedRegions::~ImportedRegions() {
  if (attached_) transport_->SetRegionImporter(nullptr);
  for (const auto& [memory, opened] : opened_) {
    device_->Close(number_, const_cast<std::byte*>(memory));
  }
}

void ImportedRegions::Attach() {
  if (attached_) return;
  attached_ = true;
  transport_->SetRegionImporter(this);
}

bool ImportedRegions::Holds(const std::byte* memory, size_t bytes) const {
  const auto after = opened_.upper_bound(memory);
  if (after == opened_.begin()) return false;
  const auto& [begin, opened] = *std::prev(after);
  const auto offset = static_cast<size_t>(memory - begin);
  return offset <= opened.bytes && bytes <= opened.bytes - offset;
}

std::byte* ImportedRegions::Open(const Region::Handle& handle, size_t bytes) {
  Result<std::byte*> memory = device_->Open(number_, handle);
  const size_t known = memory.ok() ? device_->BytesFrom(number_, *memory) : 0;
  if (known != 0 && known < bytes) {
    device_->Close(number_, *memory);
    memory = InvalidArgument("the allocation is smaller");  // a defect of the peer
  }
  if (!memory.ok()) {
    Log(LogLevel::kInfo, LogSubsystem::kTransport,
        "device {} does not reach {} bytes that a peer has on its device, which therefore come "
        "through slots: {}",
        number_, bytes, memory.status().message());
    return nullptr;
  }
  Opened& opened = opened_[*memory];
  opened.bytes = bytes;
  if (++opened.times > 1) {
    device_->Close(number_, *memory);  // not the last Close, so it does not wait
  } else {
    Log(LogLevel::kInfo, LogSubsystem::kTransport,
        "device {} reads {} bytes that a peer has on its device where they lie", number_, bytes);
  }
  return *memory;
}

}  // namespace inccl
