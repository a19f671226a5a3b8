// SPDX-License-Identifier: Apache-2.0
//
// Finds the memory in which the kernels of one Combine read and write payloads: the slots if
// kernels reach them, else Scratch. The first error sticks; later requests return nullptr.
#ifndef INCCL_COMPRESS_DEVICE_BUFFERS_H_
#define INCCL_COMPRESS_DEVICE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "compress/device_work.h"

namespace inccl {

class DeviceBuffers {
 public:
  explicit DeviceBuffers(DeviceWork* work) : work_(work) {}
  // Records another error.
  void Fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  std::byte* Scratch(size_t bytes);
  // Scratch with a copy of these bytes.
  std::byte* Copy(const void* from, size_t bytes);
  // The address at which kernels read a payload in host memory, a multiple of `alignment`; nullptr
  // for an empty payload.
  std::byte* In(const std::byte* payload, size_t bytes, size_t alignment);
  // The address at which kernels write a payload of at least one byte that is wanted at *host. Sets
  // *host to the place where the host will find it, with room for `behind` more bytes.
  std::byte* Out(std::byte** host, size_t bytes, size_t alignment, size_t behind);
  // Runs `launch` unless there has been an error.
  Status Run(const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) const {
    return status_.ok() ? work_->Run(launch) : status_;
  }

 private:
  std::byte* Reach(const std::byte* host, size_t bytes, size_t alignment) const;

  DeviceWork* work_;
  Status status_;
};

// True if `memory` is aligned for elements or codes of this size.
inline bool IsAlignedTo(const void* memory, size_t size) {
  return reinterpret_cast<uintptr_t>(memory) % size == 0;
}

}  // namespace inccl

#endif  // INCCL_COMPRESS_DEVICE_BUFFERS_H_
