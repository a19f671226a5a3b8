// SPDX-License-Identifier: Apache-2.0
//
// The C API: memory that the library allocates, and its registration with a communicator.
#include <fmt/format.h>

#include <cstdint>

#include "api/handles.h"
#include "device/runtime.h"
#include "memory/device_allocator.h"
#include "memory/host_allocator.h"

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Status;

ccl_result_t ccl_mem_alloc(void** ptr, size_t size) {
  return Guarded([&]() -> Status {
    if (ptr == nullptr) return InvalidArgument("ptr: NULL");
    *ptr = nullptr;
    if (size == 0 || size > SIZE_MAX / 2) {
      return InvalidArgument(fmt::format("size: {} is not in [1, {}]", size, SIZE_MAX / 2));
    }
    inccl::Result<void*> memory = inccl::HostAllocator::Instance().Allocate(size);
    if (!memory.ok()) {
      return {memory.status().code(), "ccl_mem_alloc of " + memory.status().message()};
    }
    *ptr = *memory;
    return Status::Ok();
  });
}

ccl_result_t ccl_mem_alloc_device(void** ptr, size_t size, int device) {
  return Guarded([&]() -> Status {
    if (ptr == nullptr) return InvalidArgument("ptr: NULL");
    *ptr = nullptr;
    if (size == 0 || size > SIZE_MAX / 2) {
      return InvalidArgument(fmt::format("size: {} is not in [1, {}]", size, SIZE_MAX / 2));
    }
    inccl::Device* const devices = inccl::LookForDevice(true);
    if (devices == nullptr) {
      return InvalidArgument(
          fmt::format("device: {}: there is none: {}", device, inccl::WhyNoDevice()));
    }
    if (device < 0 || device >= devices->Count()) {
      return InvalidArgument(fmt::format("device: {} is not in [0, {})", device, devices->Count()));
    }
    inccl::Result<void*> memory =
        inccl::DeviceAllocator::Instance().Allocate(devices, device, size);
    if (!memory.ok()) {
      return {memory.status().code(),
              fmt::format("ccl_mem_alloc_device of {} bytes on device {}: {}", size, device,
                          memory.status().message())};
    }
    *ptr = *memory;
    return Status::Ok();
  });
}

ccl_result_t ccl_mem_free(void* ptr) {
  if (ptr == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    Status status = inccl::HostAllocator::Instance().Free(ptr);
    if (!status.ok() && inccl::DeviceAllocator::Instance().Free(ptr)) return Status::Ok();
    return status;
  });
}

ccl_result_t ccl_comm_register(ccl_comm_t comm, void* ptr, size_t size, void** handle) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kReady);
    if (!lease.ok()) return lease.status();
    if (ptr == nullptr) return InvalidArgument("ptr: NULL");
    if (size == 0) return InvalidArgument("size: 0");
    if (handle == nullptr) return InvalidArgument("handle: NULL");
    inccl::Device* const device = inccl::CurrentDevice();
    const bool on_device = device != nullptr && device->DeviceOf(ptr) >= 0;
    const inccl::Result<void*> registered = lease->Register(ptr, size, on_device);
    *handle = registered.ok() ? *registered : nullptr;
    return registered.status();
  });
}

ccl_result_t ccl_comm_deregister(ccl_comm_t comm, void* handle) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    if (handle == nullptr || lease->Deregister(handle)) return Status::Ok();
    return InvalidArgument("handle: not of ccl_comm_register on this communicator");
  });
}
