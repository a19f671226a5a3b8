// SPDX-License-Identifier: Apache-2.0
//
// A GPU's memory and clock, for the benchmark of kernels. Errors end the program (perf/ alone may).
#ifndef INCCL_PERF_CUDA_DEVICE_H_
#define INCCL_PERF_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "perf/support/output.h"

namespace inccl::perf {

inline void Must(int error, const char* what) {
  if (error == cudaSuccess) return;
  PrintError("{}: {}\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(3);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) { Must(cudaMalloc(&data_, bytes), "malloc"); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <class T = uint8_t>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return bytes_; }
  void Put(const void* from, size_t bytes, size_t at = 0) {
    Must(cudaMemcpy(data() + at, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
  }
  void Take(void* to, size_t bytes) const {
    Must(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost), "copy from the device");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Milliseconds of what `launch` enqueues on the default stream: the median of `rounds` after one
// that is not counted.
template <class Launch>
double MedianMilliseconds(int rounds, Launch launch) {
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int round = 0; round <= rounds; ++round) {
    Must(cudaEventRecord(begin, nullptr), "event");
    Must(launch(), "launch");
    Must(cudaEventRecord(end, nullptr), "event");
    Must(cudaEventSynchronize(end), "kernel");
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (round > 0) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

}  // namespace inccl::perf

#endif  // INCCL_PERF_CUDA_DEVICE_H_
