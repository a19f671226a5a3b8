// SPDX-License-Identifier: Apache-2.0
//
// The interface to devices whose memory the processor cannot access. A separate library implements
// it (libinccl_cuda.so), so that libinccl itself neither links nor starts a driver.
#ifndef INCCL_DEVICE_DEVICE_H_
#define INCCL_DEVICE_DEVICE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace inccl {

namespace cuda {
struct Launchers;  // compress/cuda/launch.h
}

// Two counters by which a stream of a device and a thread of the host wait for each other. Both
// count the calls in the stream's order ("places"), from 0; they wrap around, and comparisons use
// differences.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;
  // Returns kInvalidArgument while the stream is being captured into a graph.
  virtual Status Check() = 0;
  // Appends two operations to the stream: signal the host that the stream has reached `place`, then
  // wait for Finish(place). After an error, including that of Check, the stream does not wait.
  // Leaves the calling thread's current device unchanged.
  virtual Status Append(uint32_t place) = 0;
  // True once the stream has reached `place`. Any thread.
  virtual bool Reached(uint32_t place) const = 0;
  // Allows the stream to pass all places up to this one. Any thread.
  virtual void Finish(uint32_t place) = 0;
};

// A stream of the library on one device. Its work runs in order, concurrently with other queues and
// with streams of callers. One thread at a time. The destructor waits for all work.
class DeviceQueue {
 public:
  // Launches kernels on `stream`; returns 0 or the first error (see Launchers::error_name).
  using Launch = std::function<int(const cuda::Launchers& kernels, void* stream)>;

  virtual ~DeviceQueue() = default;
  // Copies between memory of this device and host memory (AllocateHost, Register), in either
  // direction, or within the device.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Calls `launch` immediately, with the device's context. Only if Device::Kernels is not nullptr.
  virtual Status Run(const Launch& launch) = 0;
  // Marks the end of all work on the queue so far and returns its number; the first is 1.
  virtual Result<uint64_t> Mark() = 0;
  // True once all work before a mark is done and the host sees its results. Reports an error of the
  // device, possibly after some calls.
  virtual Result<bool> Reached(uint64_t mark) = 0;
};

// An allocation of device memory in the form that other processes of the host can open.
struct DeviceShare {
  static constexpr size_t kHandleBytes = 96;
  using Handle = std::array<std::byte, kHandleBytes>;  // only Device::Open interprets it

  uint64_t id = 0;            // of this allocation; its process never uses the id again
  std::byte* data = nullptr;  // its start in this process
  size_t bytes = 0;
  Handle handle{};
};

// Device memory in the form that other devices of the machine read (a dma-buf): whole pages.
struct DmaBuf {
  UniqueFd file;
  uint64_t offset = 0;  // of `data` in the file
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// All devices of this process. Any thread may call any function at any time.
class Device {
 public:
  static constexpr uint32_t kVersion = 6;  // of this interface

  virtual ~Device() = default;
  // What in this process's settings lets calls hang, for the log.
  virtual std::vector<std::string> Warnings() = 0;
  // Adds one to `calls` when a call of the driver by this thread begins, and one when it ends, so
  // that an odd number says that the thread is in one; nullptr: no more.
  virtual void CountCalls(std::atomic<uint64_t>* calls) = 0;
  virtual int Count() = 0;
  // The calling thread's current device.
  virtual int Current() = 0;
  // True if the calling thread already uses its current device, so that preparing it starts no
  // device that the process does not want.
  virtual bool InUse() = 0;
  // The device that owns this memory; -1 for memory that the processor can access.
  virtual int DeviceOf(const void* memory) = 0;
  // A unique number of a stream (NULL: the legacy stream of the current device).
  virtual Result<uint64_t> IdOf(void* stream) = 0;
  virtual Result<std::unique_ptr<DeviceOrder>> OrderOf(void* stream) = 0;
  // Pinned host memory, which the device copies from and to at full speed.
  virtual Result<std::byte*> AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* memory) = 0;
  // Copies between host memory and a device, in either direction, or between devices. Waits for the
  // copy but for no stream of a caller. Only the library's own threads call it.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;

  virtual Result<std::unique_ptr<DeviceQueue>> NewQueue(int device) = 0;
  // nullptr if there are no kernels; the library then copies elements to host memory.
  virtual const cuda::Launchers* Kernels() = 0;
  // Device memory.
  virtual Result<std::byte*> AllocateOn(int device, size_t bytes) = 0;
  virtual void FreeOn(int device, std::byte* memory) = 0;
  // Waits until the device has finished all work of this process. After an error some may be left.
  virtual Status WaitFor(int device) = 0;
  // An allocation of a multiple of this size can be shared without exposing other memory.
  virtual size_t ShareGranularity() = 0;
  // The allocation that contains [memory, memory + bytes). Fails if it cannot be shared. The caller
  // must not free a shared allocation while another process has it open.
  virtual Result<DeviceShare> Share(const void* memory, size_t bytes) = 0;
  // Opens memory that this or another process of the host shares and returns its address for queues
  // and kernels of `device`; in the sharing process that is the original address. Each Open needs a
  // Close after all use has ended.
  virtual Result<std::byte*> Open(int device, const DeviceShare::Handle& handle) = 0;
  virtual void Close(int device, std::byte* memory) = 0;
  // The pages that hold [memory, memory + bytes). Fails if other devices cannot read them.
  virtual Result<DmaBuf> DmaBufOf(const void* memory, size_t bytes) = 0;
  // Bytes from `memory` to the end of its allocation on `device`; 0 if unknown.
  virtual size_t BytesFrom(int device, const std::byte* memory) = 0;
  // Registers host memory of this process, in whole pages, so that devices access it like memory of
  // AllocateHost.
  virtual Status Register(void* memory, size_t bytes) = 0;
  virtual void Unregister(void* memory) = 0;
  // The address at which kernels of this device access memory of AllocateHost or Register; nullptr
  // if they cannot.
  virtual void* AddressOf(int device, const void* host) = 0;
};

// The type of "inccl_device", the only function that a device library exports. It returns the
// process's Device, which is never destroyed, or nullptr with the reason in `why` if the interface
// version differs or the driver does not work. A driver that the process has not started yet is
// started with `start` only, since a process that has started it cannot fork; else `later` becomes
// true: a further call may succeed.
using DeviceEntry = Device* (*)(uint32_t version, bool start, bool* later, char* why,
                                size_t why_bytes);
inline constexpr const char* kDeviceEntry = "inccl_device";

}  // namespace inccl

#endif  // INCCL_DEVICE_DEVICE_H_
