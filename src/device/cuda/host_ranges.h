// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host that devices have been told of, and where they find it. Several communicators
// may tell of the same.
#ifndef INCCL_DEVICE_CUDA_HOST_RANGES_H_
#define INCCL_DEVICE_CUDA_HOST_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "device/cuda/driver.h"

namespace inccl::cuda {

// Thread-safe; needs a current context.
class HostRanges {
 public:
  explicit HostRanges(const Driver* driver) : driver_(*driver) {}
  void SetDevices(int count) { devices_ = static_cast<size_t>(count); }

  Status Register(void* memory, size_t bytes);
  void Unregister(void* memory);
  // Where the current context's device finds it, whose number this is; nullptr: nowhere.
  void* AddressOf(int device, const void* host);

 private:
  struct Range {
    size_t bytes = 0;
    int users = 0;
    bool own = false;                    // false: the process had registered it itself
    std::vector<CUdeviceptr> addresses;  // by device; 0: not asked for yet
  };

  CUresult Tell(void* memory, size_t bytes) const;

  const Driver& driver_;
  size_t devices_ = 0;
  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;  // by their beginning
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_HOST_RANGES_H_
