// SPDX-License-Identifier: Apache-2.0
//
// What a codec's state gets to work on elements in memory of a device: kernels, and memory of the
// host that they reach. One for each Combine that is under way (CodecState::Launch).
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
  // Memory of the host that kernels reach at the same address, aligned to 256 bytes, until the
  // Combine has landed.
  virtual Result<std::byte*> Scratch(size_t bytes) = 0;
  // Where kernels reach memory of the host, as that of a slot; nullptr: nowhere, and what they read
  // or write has to be in Scratch.
  virtual std::byte* Reach(const std::byte* host, size_t bytes) = 0;
  // True: this is memory of a device, elements or a payload that a peer has lent, which kernels
  // reach where it is and the processor does not.
  virtual bool OnDevice(const std::byte* memory, size_t bytes) const = 0;
  // A copy in the device's memory of what never changes, made at the first call with this address.
  // `owner` holds the bytes, and is held as long as the copy is there: their address names them.
  virtual Result<const std::byte*> Constant(std::span<const std::byte> bytes,
                                            const std::shared_ptr<const void>& owner) = 0;
  // Calls `launch` at once; its kernels run in the order of the calls.
  virtual Status Run(
      const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) = 0;

  // What Launch wants to tell Complete.
  std::array<std::byte*, 4> kept{};
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_DEVICE_WORK_H_
