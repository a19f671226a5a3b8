// SPDX-License-Identifier: Apache-2.0
//
// Shares device memory between processes of one host by CUDA IPC handles, and keeps track of what
// this process has opened. Shares it with other devices of the machine by dma-bufs.
#ifndef INCCL_DEVICE_CUDA_IPC_H_
#define INCCL_DEVICE_CUDA_IPC_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "device/cuda/driver.h"
#include "device/device.h"

namespace inccl::cuda {

// Implements the functions of these names in Device. Thread-safe.
class Ipc {
 public:
  using ContextOf = std::function<Result<CUcontext>(int device)>;

  // `driver` outlives it.
  Ipc(const Driver* driver, ContextOf context_of);
  void SetDevices(int count) { devices_ = count; }

  // `device` owns the memory; < 0: no device does.
  Result<DeviceShare> Share(int device, const void* memory, size_t bytes);
  Result<std::byte*> Open(int device, const DeviceShare::Handle& handle);
  void Close(int device, std::byte* memory);
  Result<DmaBuf> DmaBufOf(int device, const void* memory, size_t bytes) const;

 private:
  struct Ticket;
  // An allocation of this process.
  struct Shared {
    int device = 0;
    CUdeviceptr data = 0;
    uint64_t buffer = 0;  // CUDA's number of the allocation, never reused
  };
  // An allocation of another process, open on a device of this one.
  struct Opened {
    CUdeviceptr data = 0;
    uint64_t users = 0;  // 0: a thread opens it
  };
  using Key = std::tuple<int, uint64_t, uint32_t>;  // device here, process, number in that process

  // The caller makes a context current where one is needed.
  Status Check(CUresult result, const char* call) const { return driver_.Check(result, call); }
  Result<uint64_t> BufferOf(CUdeviceptr data) const;
  Result<CUuuid> UuidOf(int device) const;
  Result<int> DeviceWith(const CUuuid& uuid) const;
  Status CheckReach(int device, int owner) const;
  uint32_t NumberOf(const Shared& shared);
  Result<std::byte*> OpenOwn(int device, uint32_t number);
  Result<std::byte*> OpenForeign(int device, const Ticket& ticket);
  Result<CUdeviceptr> OpenTicket(int device, const Ticket& ticket) const;

  const Driver& driver_;
  const ContextOf context_of_;
  const pid_t pid_;       // differs in a child of a fork, where CUDA does not work
  uint64_t process_ = 0;  // random number of this process, unique on the host; 0: none
  int devices_ = 0;
  Mutex mutex_;
  CondVar changed_;                                                // of opened_
  std::vector<Shared> shared_ INCCL_GUARDED_BY(mutex_);            // by number - 1
  std::map<uint64_t, uint32_t> numbers_ INCCL_GUARDED_BY(mutex_);  // by buffer
  std::map<Key, Opened> opened_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_IPC_H_
