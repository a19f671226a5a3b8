// SPDX-License-Identifier: Apache-2.0
//
// Memory of ccl_mem_alloc_device: whose it is, until ccl_mem_free; and what other processes are
// told of it.
#ifndef INCCL_MEMORY_DEVICE_ALLOCATOR_H_
#define INCCL_MEMORY_DEVICE_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "device/device.h"

namespace inccl {

// All of this process. Any thread.
//
// A piece that others may have open must not be freed, and nobody tells when they have closed it.
// So what Find has shown stays: Free keeps it, and Allocate takes it again before it asks the
// device for more. It is the same allocation then, and those who have it open have the new one.
class DeviceAllocator {
 public:
  static DeviceAllocator& Instance();

  Result<void*> Allocate(Device* device, int number, size_t bytes);
  // False: it is not of Allocate, or freed. Waits for the device.
  bool Free(void* data);

  // The piece that has [data, data + bytes), to be opened by others; id 0: none has, or it cannot
  // be shared, as those below Device::ShareGranularity. The device is asked once per piece.
  DeviceShare Find(const void* data, size_t bytes);

  // The device ends, and all pieces on it. For tests.
  void Forget(const Device* device);

 private:
  struct Piece {
    Piece(Device* on, int device_number, size_t size)
        : device(on), number(device_number), bytes(size) {}
    Device* const device;
    const int number;
    const size_t bytes;  // as the device was asked
    std::mutex mutex;    // of the following
    bool asked = false;
    DeviceShare share;  // id 0: none
  };
  using Pieces = std::map<const std::byte*, std::shared_ptr<Piece>>;

  // Those that hold mutex_ do.
  Pieces::iterator Fitting(const Device* device, int number, size_t bytes, size_t most);
  void* Take(Pieces::iterator kept);
  void ForkedChild();

  std::mutex mutex_;
  Pieces pieces_;
  Pieces kept_;                   // freed, and shown by Find before
  bool forked_ = false;           // since there were some
  std::atomic<size_t> count_{0};  // of pieces_
};

}  // namespace inccl

#endif  // INCCL_MEMORY_DEVICE_ALLOCATOR_H_
