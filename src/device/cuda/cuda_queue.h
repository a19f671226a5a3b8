// SPDX-License-Identifier: Apache-2.0
//
// A stream of the library in a device's primary context.
#ifndef INCCL_DEVICE_CUDA_CUDA_QUEUE_H_
#define INCCL_DEVICE_CUDA_CUDA_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/cuda/driver.h"
#include "device/device.h"

namespace inccl::cuda {

class CudaQueue final : public DeviceQueue {
 public:
  // `driver` and `kernels` outlive it.
  static Result<std::unique_ptr<CudaQueue>> Create(const Driver& driver, CUcontext context,
                                                   const Launchers* kernels);
  ~CudaQueue() override;

  Status Copy(void* to, const void* from, size_t bytes) override;
  Status Run(const Launch& launch) override;
  Result<uint64_t> Mark() override;
  Result<bool> Reached(uint64_t mark) override;

 private:
  CudaQueue(const Driver& driver, CUcontext context, const Launchers* kernels)
      : driver_(driver), context_(context), kernels_(kernels) {}

  const Driver& driver_;
  const CUcontext context_;
  const Launchers* const kernels_;
  CUstream stream_ = nullptr;
  // In pinned host memory, written by the device: the low 32 bits of the last mark that it reached.
  std::atomic<uint32_t>* passed_ = nullptr;
  uint64_t marks_ = 0;
  uint32_t looks_ = 0;
};

}  // namespace inccl::cuda

#endif  // INCCL_DEVICE_CUDA_CUDA_QUEUE_H_
