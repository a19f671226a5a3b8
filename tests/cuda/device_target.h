// SPDX-License-Identifier: Apache-2.0
//
// The kernels on the GPU, as libinccl_cuda.so launches them.
#ifndef INCCL_TESTS_CUDA_DEVICE_TARGET_H_
#define INCCL_TESTS_CUDA_DEVICE_TARGET_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "support/kernel_target.h"

namespace inccl::test {

// Why there is no GPU to run on; empty where there is one.
inline std::string WhyNoDevice() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return devices > 0 ? "" : "none found";
}

class DeviceTarget final : public KernelTarget {
 public:
  const cuda::Launchers& launchers() const override { return *inccl_cuda_launchers(); }
  void* Allocate(size_t bytes) override {
    void* memory = nullptr;
    Must(cudaMalloc(&memory, bytes));
    return memory;
  }
  void Free(void* memory) override { Must(cudaFree(memory)); }
  void Write(void* to, const void* from, size_t bytes) override {
    Must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  }
  void Read(void* to, const void* from, size_t bytes) override {
    Must(cudaDeviceSynchronize());
    Must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }

 private:
  static void Must(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_CUDA_DEVICE_TARGET_H_
