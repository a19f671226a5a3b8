// SPDX-License-Identifier: Apache-2.0
//
// A rank's GPU, through CUDA's driver, which is loaded when it is asked for: nothing of CUDA is
// linked, and its headers are not needed. The few prototypes are those of the driver's
// documentation, with pointers for addresses and handles.
#ifndef INCCL_PERF_SUPPORT_GPU_H_
#define INCCL_PERF_SUPPORT_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace inccl::perf {

// Errors have the code kUnhandledCudaError and the driver's words. One thread's, as its World is.
class Gpu {
 public:
  // Number `rank` modulo the number of devices, and its context for this thread. An error: there is
  // no driver or no device, "libcuda.so.1: ...", "cuInit: no CUDA-capable device is detected".
  // Not before a fork, which CUDA does not survive.
  static Result<std::unique_ptr<Gpu>> Open(int rank);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const std::string& name() const { return name_; }
  int count() const { return count_; }    // of devices in this host
  int number() const { return number_; }  // of this one
  void* stream() const { return stream_; }

  Result<void*> Allocate(size_t bytes);
  void Free(void* memory);
  // On the stream. Memory of the host and of devices, either way.
  Status Copy(void* to, const void* from, size_t bytes);
  // Waits for the stream.
  Status Synchronize();

 private:
  struct Driver;

  Gpu() = default;
  Status Check(int result, const char* call) const;

  std::unique_ptr<Driver> driver_;
  std::string name_;
  int count_ = 0, number_ = 0;
  void* stream_ = nullptr;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_GPU_H_
