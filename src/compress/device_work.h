// SPDX-License-Identifier: Apache-2.0
//
// The interface through which a codec's state works on elements in device memory: kernels, and host
// memory that kernels access. One object per Combine in progress (CodecState::Launch).
#ifndef INCCL_COMPRESS_DEVICE_WORK_H_
#define INCCL_COMPRESS_DEVICE_WORK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "compress/cuda/launch.h"

namespace inccl {

class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // Host memory that kernels access at the same address, aligned to 256 bytes. It is valid until
  // the Combine is complete.
  virtual Result<std::byte*> Scratch(size_t bytes) = 0;
  // The address at which kernels access host memory, e.g. of a slot. nullptr: they cannot, so their
  // data must be in Scratch.
  virtual std::byte* Reach(const std::byte* host, size_t bytes) = 0;
  // True if this is device memory (elements, or a peer's registered buffer), which kernels access
  // in place and the processor cannot.
  virtual bool OnDevice(const std::byte* memory, size_t bytes) const = 0;
  // A copy of constant data in device memory, made at the first call with this address. `owner`
  // keeps the bytes alive and is kept as long as the copy, so that the address stays unique.
  virtual Result<const std::byte*> Constant(std::span<const std::byte> bytes,
                                            const std::shared_ptr<const void>& owner) = 0;
  // Calls `launch` immediately; the kernels run in the order of the calls.
  virtual Status Run(
      const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) = 0;

  // Values that Launch passes to Complete.
  std::array<std::byte*, 4> kept{};
};

// Finds the memory in which the kernels of one Combine read and write payloads: the slots if
// kernels reach them, else Scratch. The first error sticks; later requests return nullptr.
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

#endif  // INCCL_COMPRESS_DEVICE_WORK_H_
