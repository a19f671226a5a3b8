// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/host_ranges.h"

#include <fmt/format.h>

#include <iterator>

namespace inccl::cuda {

Status HostRanges::Register(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Range& range = ranges_[reinterpret_cast<uintptr_t>(memory)];
  if (range.users > 0) {
    if (bytes != range.bytes) {
      return InternalError(fmt::format("{} bytes at {} are to be registered, which are {} already",
                                       bytes, memory, range.bytes));
    }
    ++range.users;
    return Status::Ok();
  }
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  CUresult result = driver_.host_register(memory, bytes, kFlags);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    // What a peer writes is mapped read-only here.
    result = driver_.host_register(memory, bytes, kFlags | CU_MEMHOSTREGISTER_READ_ONLY);
  }
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    ranges_.erase(reinterpret_cast<uintptr_t>(memory));
    const Status status = driver_.Check(result, "cuMemHostRegister");
    return Status(status.code(), fmt::format("{} bytes: {}", bytes, status.message()));
  }
  range.bytes = bytes;
  range.users = 1;
  range.own = result == CUDA_SUCCESS;
  range.addresses.assign(devices_, 0);
  return Status::Ok();
}

void HostRanges::Unregister(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == ranges_.end() || --found->second.users > 0) return;
  if (found->second.own) driver_.host_unregister(memory);
  ranges_.erase(found);
}

void* HostRanges::AddressOf(int device, const void* host) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(host);
  const auto ask = [&](uintptr_t at) {
    CUdeviceptr found = 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the host's
    void* const memory = reinterpret_cast<void*>(at);
    return driver_.host_pointer(&found, memory, 0) == CUDA_SUCCESS ? found : 0;
  };
  const auto after = ranges_.upper_bound(address);
  if (after != ranges_.begin()) {
    const auto& [begin, range] = *std::prev(after);
    if (range.own && address - begin < range.bytes) {
      CUdeviceptr& known = ranges_[begin].addresses[static_cast<size_t>(device)];
      if (known == 0) known = ask(begin);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's type
      return known == 0 ? nullptr : reinterpret_cast<void*>(known + (address - begin));
    }
  }
  return reinterpret_cast<void*>(ask(address));  // NOLINT(performance-no-int-to-ptr): CUDA's type
}

}  // namespace inccl::cuda
