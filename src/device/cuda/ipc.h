// SPDX-License-Identifier: Apache-2.0
//
// Memory of devices that processes of one host share: handles of CUDA IPC, and what is open here.
#ifndef INCCL_DEVICE_CUDA_IPC_H_
#define INCCL_DEVICE_CUDA_IPC_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "device/cuda/driver.h"
#include "device/device.h"

namespace inccl::cuda {

// As Device's functions of these names. Thread-safe.
class Ipc {
 public:
  using ContextOf = std::function<Result<CUcontext>(int device)>;

  // `driver` outlives it.
  Ipc(const Driver* driver, ContextOf context_of);
  void SetDevices(int count) { devices_ = count; }

  // `device`: whose memory this is; < 0: none's.
  Result<DeviceShare> Share(int device, const void* memory, size_t bytes);
  Result<std::byte*> Open(int device, const DeviceShare::Handle& handle);
  void Close(int device, std::byte* memory);

 private:
  struct Ticket;
  // An allocation of this process.
  struct Shared {
    int device = 0;
    CUdeviceptr data = 0;
    uint64_t buffer = 0;  // CUDA's number of it, which is not used again
  };
  // One of another process, open on a device of this one.
  struct Opened {
    CUdeviceptr data = 0;
    uint64_t users = 0;
  };
  using Key = std::tuple<int, uint64_t, uint32_t>;  // device, process and number there

  // Those that need a current context do.
  Status Check(CUresult result, const char* call) const { return driver_.Check(result, call); }
  Result<uint64_t> BufferOf(CUdeviceptr data) const;
  Result<CUuuid> UuidOf(int device) const;
  Result<int> DeviceWith(const CUuuid& uuid) const;
  Status CheckReach(int device, int owner) const;
  uint32_t NumberOf(const Shared& shared);
  Result<std::byte*> OpenOwn(int device, uint32_t number);
  Result<std::byte*> OpenForeign(int device, const Ticket& ticket);

  const Driver& driver_;
  const ContextOf context_of_;
  const pid_t pid_;       // a child of a fork has no CUDA and is another process
  uint64_t process_ = 0;  // which no other process has, as long as the host runs; 0: none
  int devices_ = 0;
  std::mutex mutex_;
  std::vector<Shared> shared_;            // by number - 1
  std::map<uint64_t, uint32_t> numbers_;  // by buffer
  std::map<Key, Opened> opened_;
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_IPC_H_
