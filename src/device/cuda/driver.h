// SPDX-License-Identifier: Apache-2.0
//
// The functions of CUDA's driver that are used, out of the libcuda that the process has loaded
// already: nothing is linked.
#ifndef INCCL_DEVICE_CUDA_DRIVER_H_
#define INCCL_DEVICE_CUDA_DRIVER_H_

#include <cuda.h>

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
  // For memory of other processes; nullptr: not with this driver.
  decltype(&cuDeviceGetUuid) device_uuid;
  decltype(&cuIpcGetMemHandle) ipc_get;
  decltype(&cuIpcOpenMemHandle) ipc_open;
  decltype(&cuIpcCloseMemHandle) ipc_close;

  // The driver of this process; an error: there is none, or it lacks a function.
  static Result<Driver> Load();
  bool HasIpc() const { return device_uuid && ipc_get && ipc_open && ipc_close; }
  // kUnhandledCudaError with the call's name and the driver's words.
  Status Check(CUresult result, const char* call) const;
};

inline CUdeviceptr Address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// A context for as long as this lives. What is done meanwhile is on streams of the library's own or
// is checked before: a capture that the application makes elsewhere neither forbids nor notices it.
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
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the thread's own
  const Status status_;
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_DRIVER_H_
