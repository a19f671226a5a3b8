// SPDX-License-Identifier: Apache-2.0
//
// Host memory that is registered with devices, and its device addresses. Several communicators may
// register the same memory.
#ifndef INCCL_DEVICE_CUDA_HOST_RANGES_H_
#define INCCL_DEVICE_CUDA_HOST_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "device/cuda/driver.h"

namespace inccl::cuda {

// Thread-safe; needs a current context.
class HostRanges {
 public:
  explicit HostRanges(const Driver* driver) : driver_(*driver) {}
  void SetDevices(int count) { devices_ = static_cast<size_t>(count); }

  Status Register(void* memory, size_t bytes);
  void Unregister(void* memory);
  // The address for `device`, whose context is current; nullptr if the device cannot access it.
  void* AddressOf(int device, const void* host);

 private:
  struct Range {
    size_t bytes = 0;
    int users = 0;
    bool own = false;                    // false: the application had registered it already
    std::vector<CUdeviceptr> addresses;  // by device; 0: not looked up yet
  };

  CUresult Tell(void* memory, size_t bytes) const;

  const Driver& driver_;
  size_t devices_ = 0;
  Mutex mutex_;
  std::map<uintptr_t, Range> ranges_ INCCL_GUARDED_BY(mutex_);  // by their beginning
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_HOST_RANGES_H_
