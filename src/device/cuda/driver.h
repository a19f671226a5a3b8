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

  // The driver of this process; an error: there is none, or it lacks a function.
  static Result<Driver> Load();
  // kUnhandledCudaError with the call's name and the driver's words.
  Status Check(CUresult result, const char* call) const;
};

inline CUdeviceptr Address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// A context for as long as this lives.
class Within {
 public:
  Within(const Driver& driver, CUcontext context)
      : driver_(driver), status_(driver.Check(driver.push(context), "cuCtxPushCurrent")) {}
  ~Within() {
    CUcontext context = nullptr;
    if (status_.ok()) driver_.pop(&context);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  const Status status_;
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_DRIVER_H_
