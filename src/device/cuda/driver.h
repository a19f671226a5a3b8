// SPDX-License-Identifier: Apache-2.0
//
// The functions of CUDA's driver that the library uses, looked up in the libcuda that the process
// has already loaded. The library does not link libcuda.
#ifndef INCCL_DEVICE_CUDA_DRIVER_H_
#define INCCL_DEVICE_CUDA_DRIVER_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace inccl::cuda {

struct Driver {
  decltype(&cuInit) init;
  decltype(&cuGetErrorString) error_string;
  decltype(&cuDeviceGetCount) device_count;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxGetCurrent) context;
  decltype(&cuCtxGetDevice) context_device;
  decltype(&cuCtxPushCurrent) push;
  decltype(&cuCtxPopCurrent) pop;
  decltype(&cuPointerGetAttribute) pointer_attribute;
  decltype(&cuStreamCreateWithPriority) stream_create;
  decltype(&cuStreamDestroy) stream_destroy;
  decltype(&cuStreamSynchronize) stream_synchronize;
  decltype(&cuStreamQuery) stream_query;
  decltype(&cuStreamGetId) stream_id;
  decltype(&cuStreamGetCtx) stream_context;
  decltype(&cuStreamIsCapturing) stream_capturing;
  decltype(&cuThreadExchangeStreamCaptureMode) capture_mode;
  decltype(&cuStreamWriteValue32) stream_write;
  decltype(&cuStreamWaitValue32) stream_wait;
  decltype(&cuMemHostAlloc) host_alloc;
  decltype(&cuMemFreeHost) host_free;
  decltype(&cuMemHostGetDevicePointer) host_pointer;
  decltype(&cuMemHostRegister) host_register;
  decltype(&cuMemHostUnregister) host_unregister;
  decltype(&cuMemAlloc) alloc;
  decltype(&cuMemFree) free;
  decltype(&cuMemcpyAsync) copy;
  decltype(&cuCtxSynchronize) context_synchronize;
  decltype(&cuDeviceCanAccessPeer) can_access_peer;
  decltype(&cuCtxEnablePeerAccess) enable_peer;
  decltype(&cuMemGetAddressRange) address_range;
  // For memory of other processes; nullptr if this driver lacks them.
  decltype(&cuDeviceGetUuid) device_uuid;
  decltype(&cuIpcGetMemHandle) ipc_get;
  decltype(&cuIpcOpenMemHandle) ipc_open;
  decltype(&cuIpcCloseMemHandle) ipc_close;
  // For RDMA devices; nullptr if this driver lacks it.
  decltype(&cuMemGetHandleForAddressRange) range_handle;
  decltype(&cuModuleGetLoadingMode) loading_mode;  // or nullptr

  // The driver of this process. Fails if there is none or if it lacks a function.
  static Result<Driver> Load();
  bool HasIpc() const { return device_uuid && ipc_get && ipc_open && ipc_close; }
  // Returns kUnhandledCudaError with the call's name and the driver's error text.
  Status Check(CUresult result, const char* call) const;
};

inline CUdeviceptr Address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// A call of the driver, or several, for Device::CountCalls.
class Counted {
 public:
  Counted() {
    if (depth++ == 0 && calls != nullptr) calls->fetch_add(1, std::memory_order_relaxed);
  }
  ~Counted() {
    if (--depth == 0 && calls != nullptr) calls->fetch_add(1, std::memory_order_relaxed);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  static inline thread_local std::atomic<uint64_t>* calls = nullptr;

 private:
  static inline thread_local int depth = 0;
};

// Makes a context current for the lifetime of this object. It also relaxes the capture mode of the
// thread: a capture that the application makes elsewhere then neither forbids nor records the
// library's work, which runs on its own streams or is checked beforehand.
class Within {
 public:
  Within(const Driver& driver, CUcontext context)
      : driver_(driver), status_(driver.Check(driver.push(context), "cuCtxPushCurrent")) {
    driver_.capture_mode(&mode_);
  }
  ~Within() {
    driver_.capture_mode(&mode_);
    CUcontext context = nullptr;
    if (status_.ok()) driver_.pop(&context);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  const Status& status() const { return status_; }

 private:
  const Counted counted_;
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // later holds the thread's own mode
  const Status status_;
};

// Host memory that is registered with devices, and its device addresses. Several communicators may
// register the same memory.

// Thread-safe; needs a current context.
class HostRanges {
 public:
  explicit HostRanges(const Driver* driver) : driver_(*driver) {}
  void SetDevices(int count) { devices_ = static_cast<size_t>(count); }

  Status Register(void* memory, size_t bytes);
  void Unregister(void* memory);
  // The address for `device`, whose context is current; nullptr if the device cannot access it.
  void* AddressOf(int device, const void* host);

 private:
  struct Range {
    size_t bytes = 0;
    int users = 0;
    bool own = false;                    // false: the application had registered it already
    std::vector<CUdeviceptr> addresses;  // by device; 0: not looked up yet
  };

  CUresult Tell(void* memory, size_t bytes) const;
  CUdeviceptr Ask(uintptr_t address) const;

  const Driver& driver_;
  size_t devices_ = 0;
  Mutex mutex_;
  std::map<uintptr_t, Range> ranges_ INCCL_GUARDED_BY(mutex_);  // by their beginning
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_DRIVER_H_
