// SPDX-License-Identifier: Apache-2.0
//
// What the library asks of a device whose memory the processor cannot reach. Another library
// implements it (libinccl_cuda.so), so that this one starts no driver and needs none.
#ifndef INCCL_DEVICE_DEVICE_H_
#define INCCL_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace inccl {

// Two counters by which a stream of a device and a thread of the host wait for each other. Both
// count places, from 0; they wrap, and only their difference counts.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;
  // Appends to the stream: tell the host that the stream has come here, then wait for
  // Finish(place). An error: nothing has been appended. Changes nothing of the calling thread's.
  virtual Status Append(uint32_t place) = 0;
  // True once the stream has come to `place`. Any thread.
  virtual bool Reached(uint32_t place) const = 0;
  // Lets the stream pass all places up to this one. Any thread.
  virtual void Finish(uint32_t place) = 0;
};

// Every function from any thread, at any time.
class Device {
 public:
  static constexpr uint32_t kVersion = 1;  // of this interface

  virtual ~Device() = default;
  virtual int Count() = 0;
  // The calling thread's current device.
  virtual int Current() = 0;
  // The device whose memory this is; -1: the processor's own, or memory that it reaches, too.
  virtual int DeviceOf(const void* memory) = 0;
  // Names a stream (NULL: the legacy one of the current device) by a number that no other gets.
  virtual Result<uint64_t> IdOf(void* stream) = 0;
  virtual Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) = 0;
  // Memory of the host that the device copies from and to at full speed.
  virtual Result<std::byte*> AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* memory) = 0;
  // Between memory of the host and of a device, either way. Waits for the copy and for no stream of
  // a caller's. From the library's own threads.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
};

// The one function that a library of a device exports, "inccl_device": the device of this process,
// which lives as long as the process, or nullptr with the reason in `why` if it is of another
// version or the driver does not work.
using DeviceEntry = Device* (*)(uint32_t version, char* why, size_t why_bytes);
inline constexpr const char* kDeviceEntry = "inccl_device";

}  // namespace inccl

#endif  // INCCL_DEVICE_DEVICE_H_
