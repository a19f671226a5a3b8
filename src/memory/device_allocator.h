// SPDX-License-Identifier: Apache-2.0
//
// Device memory of ccl_mem_alloc_device: which pieces exist until ccl_mem_free, and the handles by
// which peers open them.
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

// The registry of this process; any thread may use it.
//
// The library never frees a piece that a peer may have open, and peers do not report when they
// close it. So Free keeps every piece that Find has exported, and Allocate reuses kept pieces
// before it asks the device for more memory. A reused piece is the same allocation, so a peer that
// still has it open sees its new contents.
class DeviceAllocator {
 public:
  static DeviceAllocator& Instance();

  Result<void*> Allocate(Device* device, int number, size_t bytes);
  // Waits for the device. Returns false if `data` is not from Allocate or is freed already.
  bool Free(void* data);

  // The handle by which peers open the piece that contains [data, data + bytes). Its id is 0 if no
  // piece contains the range or the piece cannot be shared, e.g. because it is smaller than
  // Device::ShareGranularity. The device is asked once per piece.
  DeviceShare Find(const void* data, size_t bytes);

  // Drops all pieces of a device that ends. For tests.
  void Forget(const Device* device);

 private:
  struct Piece {
    Piece(Device* on, int device_number, size_t size)
        : device(on), number(device_number), bytes(size) {}
    Device* const device;
    const int number;
    const size_t bytes;  // as requested from the device
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
  Pieces kept_;                   // freed by the caller after Find had exported them
  bool forked_ = false;           // a child of a fork whose parent had pieces
  std::atomic<size_t> count_{0};  // of pieces_
};

}  // namespace inccl

#endif  // INCCL_MEMORY_DEVICE_ALLOCATOR_H_
