// SPDX-License-Identifier: Apache-2.0
//
// The interface through which a codec's state works on elements in device memory: kernels, and host
// memory that kernels access. One object per Combine in progress (CodecState::Launch).
#ifndef INCCL_COMPRESS_DEVICE_WORK_H_
#define INCCL_COMPRESS_DEVICE_WORK_H_

#include <array>
#include <cstddef>
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

}  // namespace inccl

#endif  // INCCL_COMPRESS_DEVICE_WORK_H_
