// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

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

}  // namespace inccl::cuda
