// SPDX-License-Identifier: Apache-2.0
//
// What the library asks of a device whose memory the processor cannot reach. Another library
// implements it (libinccl_cuda.so), so that this one starts no driver and needs none.
#ifndef INCCL_DEVICE_DEVICE_H_
#define INCCL_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace inccl {

namespace cuda {
struct Launchers;  // compress/cuda/launch.h
}

// Two counters by which a stream of a device and a thread of the host wait for each other. Both
// count places, from 0; they wrap, and only their difference counts.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;
  // kInvalidArgument: the stream takes nothing now, since it is being captured into a graph.
  virtual Status Check() = 0;
  // Appends to the stream: tell the host that the stream has come here, then wait for
  // Finish(place). An error, also that of Check: nothing has been appended. Changes nothing of the
  // calling thread's.
  virtual Status Append(uint32_t place) = 0;
  // True once the stream has come to `place`. Any thread.
  virtual bool Reached(uint32_t place) const = 0;
  // Lets the stream pass all places up to this one. Any thread.
  virtual void Finish(uint32_t place) = 0;
};

// A stream of the library's own on one device: what is put on it runs in order, at once with what
// other queues and the streams of callers do. One thread at a time. Its end waits for all of it.
class DeviceQueue {
 public:
  // Launches kernels on `stream`; returns the first error (Launchers::error_name says which), or 0.
  using Launch = std::function<int(const cuda::Launchers& kernels, void* stream)>;

  virtual ~DeviceQueue() = default;
  // Between memory of this device and of the host (AllocateHost, Register), either way, or within
  // the device.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Calls `launch` at once, with the device's context. Only where Device::Kernels has some.
  virtual Status Run(const Launch& launch) = 0;
  // Counts what has been put on the queue before; the first count is 1.
  virtual Result<uint64_t> Mark() = 0;
  // True: all that a Mark counted is done, and the host sees what it wrote. An error of the device
  // ends in one here, in time.
  virtual Result<bool> Reached(uint64_t mark) = 0;
};

// An allocation of a device's memory, as other processes of the host are told of it.
struct DeviceShare {
  static constexpr size_t kHandleBytes = 96;
  using Handle = std::array<std::byte, kHandleBytes>;  // for Device::Open alone to read

  uint64_t id = 0;            // of this allocation: no other one of its process ever has it
  std::byte* data = nullptr;  // where it begins, here
  size_t bytes = 0;
  Handle handle{};
};

// Every function from any thread, at any time.
class Device {
 public:
  static constexpr uint32_t kVersion = 4;  // of this interface

  virtual ~Device() = default;
  virtual int Count() = 0;
  // The calling thread's current device.
  virtual int Current() = 0;
  // True: the calling thread works on that device already, so that what is prepared there starts
  // nothing that the process does not want.
  virtual bool InUse() = 0;
  // The device whose memory this is; -1: the processor's own, or memory that it reaches, too.
  virtual int DeviceOf(const void* memory) = 0;
  // Names a stream (NULL: the legacy one of the current device) by a number that no other gets.
  virtual Result<uint64_t> IdOf(void* stream) = 0;
  virtual Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) = 0;
  // Memory of the host that the device copies from and to at full speed.
  virtual Result<std::byte*> AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* memory) = 0;
  // Between memory of the host and of a device, either way, or of devices. Waits for the copy and
  // for no stream of a caller's. From the library's own threads.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;

  virtual Result<std::unique_ptr<DeviceQueue>> NewQueue(int device) = 0;
  // nullptr: there are none, and elements are copied to where the processor reaches them.
  virtual const cuda::Launchers* Kernels() = 0;
  // Memory of a device.
  virtual Result<std::byte*> AllocateOn(int device, size_t bytes) = 0;
  virtual void FreeOn(int device, std::byte* memory) = 0;
  // Waits until the device has done all that this process has given it.
  virtual void WaitFor(int device) = 0;
  // An allocation of a multiple of so many bytes is shared with nothing beside it.
  virtual size_t ShareGranularity() = 0;
  // The allocation that [memory, memory + bytes) lies in. An error: others cannot be given it. Once
  // shared, it must not be freed while another process has it open.
  virtual Result<DeviceShare> Share(const void* memory, size_t bytes) = 0;
  // Memory that this or another process of the host shares, where queues and kernels of `device`
  // reach it; in the sharing process that is where it is. Each Open has its Close, before which all
  // use of it has ended.
  virtual Result<std::byte*> Open(int device, const DeviceShare::Handle& handle) = 0;
  virtual void Close(int device, std::byte* memory) = 0;
  // How far the allocation goes on from here, as `device` has it; 0: that is not known.
  virtual size_t BytesFrom(int device, const std::byte* memory) = 0;
  // Lets devices reach memory of the host that is mapped here, as that of AllocateHost. Whole
  // pages.
  virtual Status Register(void* memory, size_t bytes) = 0;
  virtual void Unregister(void* memory) = 0;
  // Where kernels of this device find memory of AllocateHost or Register; nullptr: they do not.
  virtual void* AddressOf(int device, const void* host) = 0;
};

// The one function that a library of a device exports, "inccl_device": the device of this process,
// which lives as long as the process, or nullptr with the reason in `why` if it is of another
// version or the driver does not work.
using DeviceEntry = Device* (*)(uint32_t version, char* why, size_t why_bytes);
inline constexpr const char* kDeviceEntry = "inccl_device";

}  // namespace inccl

#endif  // INCCL_DEVICE_DEVICE_H_
