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

#include "base/mutex.h"
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
  // Waits for the device, after the HostAllocator's observers have learnt of it. Returns false if
  // `data` is not from Allocate or is freed already.
  bool Free(void* data);

  // The handle by which peers open the piece that contains [data, data + bytes). Its id is 0 if no
  // piece contains the range or the piece cannot be shared, e.g. because it is smaller than
  // Device::ShareGranularity. The device is asked once per piece.
  DeviceShare Find(const void* data, size_t bytes);

  // The same without a handle, so that a freed piece goes back to the device.
  DeviceShare PieceOf(const void* data, size_t bytes);

  // Drops all pieces of a device that ends. For tests.
  void Forget(const Device* device);

 private:
  struct Piece {
    Piece(Device* on, int device_number, size_t size, uint64_t own_id)
        : device(on), number(device_number), bytes(size), id(own_id) {}
    Device* const device;
    const int number;
    const size_t bytes;  // as the device was asked
    const uint64_t id;   // never reused
    Mutex mutex;         // taken before the device's, and not together with mutex_
    bool asked INCCL_GUARDED_BY(mutex) = false;
    DeviceShare share INCCL_GUARDED_BY(mutex);  // id 0: none
  };
  using Pieces = std::map<const std::byte*, std::shared_ptr<Piece>>;

  Pieces::iterator Holding(const std::byte* data, size_t bytes) INCCL_REQUIRES(mutex_);
  Pieces::iterator Fitting(const Device* device, int number, size_t bytes, size_t most)
      INCCL_REQUIRES(mutex_);
  void* Take(Pieces::iterator kept) INCCL_REQUIRES(mutex_);
  void ForkedChild() INCCL_REQUIRES(mutex_);

  Mutex mutex_;
  Pieces pieces_ INCCL_GUARDED_BY(mutex_);
  Pieces kept_ INCCL_GUARDED_BY(mutex_);  // freed, and shown by Find before
  uint64_t last_id_ INCCL_GUARDED_BY(mutex_) = 0;
  bool forked_ INCCL_GUARDED_BY(mutex_) = false;  // since there were some
  std::atomic<size_t> count_{0};                  // of pieces_
};

}  // namespace inccl

#endif  // INCCL_MEMORY_DEVICE_ALLOCATOR_H_
