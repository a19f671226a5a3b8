// SPDX-License-Identifier: Apache-2.0
//
// The warp of a GPU (warp_fields.h). For nvcc only.
#ifndef INCCL_COMPRESS_CUDA_DEVICE_WARP_H_
#define INCCL_COMPRESS_CUDA_DEVICE_WARP_H_

#include <cstdint>

namespace inccl::cuda {

class DeviceWarp {
 public:
  __device__ uint32_t lane() const { return threadIdx.x % 32; }
  __device__ uint32_t Get(uint32_t value, uint32_t lane) const {
    return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
  }
  // Whether any lane says so.
  __device__ bool Any(bool condition) const {
    return __any_sync(0xffffffffu, condition ? 1 : 0) != 0;
  }
};

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_DEVICE_WARP_H_
