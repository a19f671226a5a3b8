// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/host_ranges.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdio>
#include <iterator>
#include <memory>

namespace inccl::cuda {
namespace {

constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

bool Taken(CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

// True if one shared read-only mapping contains all of this memory.
bool IsSharedReadOnly(const void* memory, size_t bytes) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   [](FILE* file) { return std::fclose(file); });
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long from = 0, to = 0;  // NOLINT(google-runtime-int): sscanf's type
    char rights[5] = {};
    // NOLINTNEXTLINE(cert-err34-c): the kernel's own numbers
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 || begin >= to) continue;
    if (begin < from || bytes > to - begin) return false;
    return rights[0] == 'r' && rights[1] == '-' && rights[3] == 's';
  }
  return false;
}

}  // namespace

// This process maps a peer's slots read-only. Some devices refuse to register such memory, even
// with the read-only flag. The mapping is then made writable for the registration, which stays
// valid when the mapping is read-only again.
CUresult HostRanges::Tell(void* memory, size_t bytes) const {
  CUresult result = driver_.host_register(memory, bytes, kFlags);
  if (Taken(result)) return result;
  result = driver_.host_register(memory, bytes, kFlags | CU_MEMHOSTREGISTER_READ_ONLY);
  if (Taken(result) || !IsSharedReadOnly(memory, bytes)) return result;
  if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) return result;
  result = driver_.host_register(memory, bytes, kFlags);
  mprotect(memory, bytes, PROT_READ);
  return result;
}

Status HostRanges::Register(void* memory, size_t bytes) {
  const MutexLock lock(&mutex_);
  Range& range = ranges_[reinterpret_cast<uintptr_t>(memory)];
  if (range.users > 0) {
    if (bytes != range.bytes) {
      return InternalError(fmt::format("{} bytes at {} are to be registered, which are {} already",
                                       bytes, memory, range.bytes));
    }
    ++range.users;
    return Status::Ok();
  }
  const CUresult result = Tell(memory, bytes);
  if (!Taken(result)) {
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
  const MutexLock lock(&mutex_);
  const auto found = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == ranges_.end() || --found->second.users > 0) return;
  if (found->second.own) driver_.host_unregister(memory);
  ranges_.erase(found);
}

void* HostRanges::AddressOf(int device, const void* host) {
  const MutexLock lock(&mutex_);
  const auto address = reinterpret_cast<uintptr_t>(host);
  const auto ask = [&](uintptr_t at) {
    CUdeviceptr found = 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a host address
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
