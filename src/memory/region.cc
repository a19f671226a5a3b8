// SPDX-License-Identifier: Apache-2.0
#include "memory/region.h"

#include "memory/device_allocator.h"
#include "memory/host_allocator.h"

namespace inccl {
namespace {

// Keeps the generations of device memory apart from HostAllocator's.
constexpr uint64_t kOfDevice = uint64_t{1} << 63;

Region RegionOf(const DeviceShare& share) {
  static_assert(DeviceShare::kHandleBytes == Region::kHandleBytes);
  if (share.id == 0) return {};
  return {.generation = kOfDevice | share.id,
          .data = share.data,
          .bytes = share.bytes,
          .on_device = true,
          .handle = share.handle};
}

}  // namespace

Result<Region> FindRegion(const void* data, size_t bytes, bool on_device) {
  if (on_device) {
    const Region region = RegionOf(DeviceAllocator::Instance().Find(data, bytes));
    if (region.generation != 0) return region;
    thread_local const Status none =
        InvalidArgument("not memory of ccl_mem_alloc_device that peers can open");
    return none;
  }
  const Region region = HostAllocator::Instance().Find(data, bytes);
  if (region.generation != 0) return region;
  thread_local const Status none =
      InvalidArgument("not memory of ccl_mem_alloc that peers can map");
  return none;
}

Region FindOnDevice(const void* data, size_t bytes) {
  return RegionOf(DeviceAllocator::Instance().PieceOf(data, bytes));
}

Status WhyNoRegion(const void* data, size_t bytes, bool on_device) {
  if (!on_device) return HostAllocator::Instance().WhyNotShared(data, bytes);
  if (FindOnDevice(data, bytes).generation == 0) {
    return InvalidArgument("not memory of ccl_mem_alloc_device");
  }
  return InvalidArgument("memory of ccl_mem_alloc_device that the device cannot share");
}

}  // namespace inccl
