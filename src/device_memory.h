// SPDX-License-Identifier: Apache-2.0
//
// Memory of ccl_mem_alloc_device: whose it is, until ccl_mem_free.
#ifndef INCCL_DEVICE_MEMORY_H_
#define INCCL_DEVICE_MEMORY_H_

#include <cstddef>
#include <map>
#include <mutex>

#include "base/status.h"
#include "device/device.h"

namespace inccl {

// All of this process. Any thread.
class DeviceMemory {
 public:
  static DeviceMemory& Instance();

  Result<void*> Allocate(Device* device, int number, size_t bytes);
  // False: it is not of Allocate, or freed.
  bool Free(void* data);
  static DeviceShare Find(const void* data, size_t bytes);

 private:
  struct Piece {
    Device* device;
    int number;
  };

  std::mutex mutex_;
  std::map<void*, Piece> pieces_;
};

}  // namespace inccl

#endif  // INCCL_DEVICE_MEMORY_H_
