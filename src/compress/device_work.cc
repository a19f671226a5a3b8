// SPDX-License-Identifier: Apache-2.0
#include "compress/device_work.h"

#include <cstring>

namespace inccl {

std::byte* DeviceBuffers::Scratch(size_t bytes) {
  if (!status_.ok()) return nullptr;
  const Result<std::byte*> scratch = work_->Scratch(bytes);
  if (scratch.ok()) return *scratch;
  status_ = scratch.status();
  return nullptr;
}

std::byte* DeviceBuffers::Copy(const void* from, size_t bytes) {
  std::byte* const to = Scratch(bytes);
  if (to != nullptr) std::memcpy(to, from, bytes);
  return to;
}

std::byte* DeviceBuffers::Reach(const std::byte* host, size_t bytes, size_t alignment) const {
  std::byte* const reached = work_->Reach(host, bytes);
  return IsAlignedTo(reached, alignment) ? reached : nullptr;
}

std::byte* DeviceBuffers::In(const std::byte* payload, size_t bytes, size_t alignment) {
  if (!status_.ok() || bytes == 0) return nullptr;
  std::byte* const reached = Reach(payload, bytes, alignment);
  return reached != nullptr ? reached : Copy(payload, bytes);
}

std::byte* DeviceBuffers::Out(std::byte** host, size_t bytes, size_t alignment, size_t behind) {
  if (!status_.ok()) return nullptr;
  std::byte* const reached = Reach(*host, bytes, alignment);
  if (reached != nullptr) return reached;
  *host = Scratch(bytes + behind);
  return *host;
}

}  // namespace inccl
