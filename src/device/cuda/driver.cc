// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdio>
#include <iterator>
#include <memory>

namespace inccl::cuda {
namespace {

// cuda.h renames functions whose signature has changed by macros ("cuCtxPushCurrent_v2"), so the
// symbol's name must come from the same macro.
#define INCCL_TEXT(x) #x
#define INCCL_SYMBOL(name) INCCL_TEXT(name)

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  template <typename Function>
  void Find(const char* name, Function* function) {
    FindOptional(name, function);
    if (*function == nullptr && missing_ == nullptr) missing_ = name;
  }
  template <typename Function>
  void FindOptional(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
  }
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

}  // namespace

Result<Driver> Driver::Load() {
  // Never closed: the process uses the driver, else it would not be loaded.
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return SystemError("libcuda.so.1 is not loaded");
  Driver driver{};
  Symbols symbols(library);
  symbols.Find(INCCL_SYMBOL(cuInit), &driver.init);
  symbols.Find(INCCL_SYMBOL(cuGetErrorString), &driver.error_string);
  symbols.Find(INCCL_SYMBOL(cuDeviceGetCount), &driver.device_count);
  symbols.Find(INCCL_SYMBOL(cuDeviceGet), &driver.device_get);
  symbols.Find(INCCL_SYMBOL(cuDevicePrimaryCtxRetain), &driver.retain);
  symbols.Find(INCCL_SYMBOL(cuCtxGetCurrent), &driver.context);
  symbols.Find(INCCL_SYMBOL(cuCtxGetDevice), &driver.context_device);
  symbols.Find(INCCL_SYMBOL(cuCtxPushCurrent), &driver.push);
  symbols.Find(INCCL_SYMBOL(cuCtxPopCurrent), &driver.pop);
  symbols.Find(INCCL_SYMBOL(cuPointerGetAttribute), &driver.pointer_attribute);
  symbols.Find(INCCL_SYMBOL(cuStreamCreateWithPriority), &driver.stream_create);
  symbols.Find(INCCL_SYMBOL(cuStreamDestroy), &driver.stream_destroy);
  symbols.Find(INCCL_SYMBOL(cuStreamQuery), &driver.stream_query);
  symbols.Find(INCCL_SYMBOL(cuStreamSynchronize), &driver.stream_synchronize);
  symbols.Find(INCCL_SYMBOL(cuStreamGetId), &driver.stream_id);
  symbols.Find(INCCL_SYMBOL(cuStreamGetCtx), &driver.stream_context);
  symbols.Find(INCCL_SYMBOL(cuStreamIsCapturing), &driver.stream_capturing);
  symbols.Find(INCCL_SYMBOL(cuThreadExchangeStreamCaptureMode), &driver.capture_mode);
  symbols.Find(INCCL_SYMBOL(cuStreamWriteValue32), &driver.stream_write);
  symbols.Find(INCCL_SYMBOL(cuStreamWaitValue32), &driver.stream_wait);
  symbols.Find(INCCL_SYMBOL(cuMemHostAlloc), &driver.host_alloc);
  symbols.Find(INCCL_SYMBOL(cuMemFreeHost), &driver.host_free);
  symbols.Find(INCCL_SYMBOL(cuMemHostGetDevicePointer), &driver.host_pointer);
  symbols.Find(INCCL_SYMBOL(cuMemHostRegister), &driver.host_register);
  symbols.Find(INCCL_SYMBOL(cuMemHostUnregister), &driver.host_unregister);
  symbols.Find(INCCL_SYMBOL(cuMemAlloc), &driver.alloc);
  symbols.Find(INCCL_SYMBOL(cuMemFree), &driver.free);
  symbols.Find(INCCL_SYMBOL(cuMemcpyAsync), &driver.copy);
  symbols.Find(INCCL_SYMBOL(cuCtxSynchronize), &driver.context_synchronize);
  symbols.Find(INCCL_SYMBOL(cuDeviceCanAccessPeer), &driver.can_access_peer);
  symbols.Find(INCCL_SYMBOL(cuCtxEnablePeerAccess), &driver.enable_peer);
  symbols.Find(INCCL_SYMBOL(cuMemGetAddressRange), &driver.address_range);
  // Only the second version distinguishes parts of one device (MIG).
  symbols.FindOptional("cuDeviceGetUuid_v2", &driver.device_uuid);
  symbols.FindOptional(INCCL_SYMBOL(cuIpcGetMemHandle), &driver.ipc_get);
  symbols.FindOptional(INCCL_SYMBOL(cuIpcOpenMemHandle), &driver.ipc_open);
  symbols.FindOptional(INCCL_SYMBOL(cuIpcCloseMemHandle), &driver.ipc_close);
  symbols.FindOptional(INCCL_SYMBOL(cuMemGetHandleForAddressRange), &driver.range_handle);
  symbols.FindOptional(INCCL_SYMBOL(cuModuleGetLoadingMode), &driver.loading_mode);
  if (symbols.missing() != nullptr) {
    return SystemError(
        fmt::format("libcuda.so.1 has no {}: older than CUDA 12", symbols.missing()));
  }
  return driver;
}

Status Driver::Check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return Status::Ok();
  const char* text = nullptr;
  if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return {Code::kUnhandledCudaError,
          fmt::format("{}: {} ({})", call, text, static_cast<int>(result))};
}

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
  // The application may have registered a part of it only.
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const bool all = result == CUDA_SUCCESS || (Ask(begin) != 0 && Ask(begin + bytes - 1) != 0);
  if (!Taken(result) || !all) {
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

// 0: the current context's device does not reach it.
CUdeviceptr HostRanges::Ask(uintptr_t address) const {
  CUdeviceptr found = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a host address
  void* const memory = reinterpret_cast<void*>(address);
  return driver_.host_pointer(&found, memory, 0) == CUDA_SUCCESS ? found : 0;
}

void* HostRanges::AddressOf(int device, const void* host) {
  const MutexLock lock(&mutex_);
  const auto address = reinterpret_cast<uintptr_t>(host);
  const auto after = ranges_.upper_bound(address);
  if (after != ranges_.begin()) {
    const auto& [begin, range] = *std::prev(after);
    if (range.own && address - begin < range.bytes) {
      CUdeviceptr& known = ranges_[begin].addresses[static_cast<size_t>(device)];
      if (known == 0) known = Ask(begin);
      // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's type
      return known == 0 ? nullptr : reinterpret_cast<void*>(known + (address - begin));
    }
  }
  return reinterpret_cast<void*>(Ask(address));  // NOLINT(performance-no-int-to-ptr): CUDA's type
}

}  // namespace inccl::cuda
