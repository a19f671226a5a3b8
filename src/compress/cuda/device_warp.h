// SPDX-License-Identifier: Apache-2.0
//
// The Warp of warp_fields.h on a GPU; for nvcc only.
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
  // True if the condition holds in any lane.
  __device__ bool Any(bool condition) const {
    return __any_sync(0xffffffffu, condition ? 1 : 0) != 0;
  }
};

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_DEVICE_WARP_H_
