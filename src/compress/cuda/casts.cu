// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the casts. Thread blocks are as in hbi.cu.
#include <cuda_runtime.h>

#include "compress/cuda/device_warp.h"
#include "compress/cuda/launch_parts.h"
#include "compress/cuda/warp_casts.h"

namespace inccl::cuda {
namespace {

constexpr uint32_t kThreads = kWarpsPerTile * kWarp;

template <class Format>
__global__ void __launch_bounds__(kThreads)
    CastEncodeKernel(const float* in, uint32_t count, uint8_t* out) {
  CastEncodeTile<Format>(DeviceWarp(), in, count, out, blockIdx.x, threadIdx.x / kWarp);
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    CastDecodeKernel(const uint8_t* in, uint32_t count, float* out) {
  CastDecodeTile<Format>(DeviceWarp(), in, count, out, blockIdx.x, threadIdx.x / kWarp);
}

uint32_t Tiles(uint32_t count) { return SliceArgs{.count = count}.tiles(); }

}  // namespace

int LaunchCastEncode(CastFormat format, const float* in, uint32_t count, uint8_t* out,
                     void* stream) {
  if (count == 0) return cudaSuccess;
  return WithCast(format, cudaErrorInvalidValue, [&](auto cast) {
    CastEncodeKernel<decltype(cast)>
        <<<Tiles(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, count, out);
    return static_cast<int>(cudaGetLastError());
  });
}

int LaunchCastDecode(CastFormat format, const uint8_t* in, uint32_t count, float* out,
                     void* stream) {
  if (count == 0) return cudaSuccess;
  return WithCast(format, cudaErrorInvalidValue, [&](auto cast) {
    CastDecodeKernel<decltype(cast)>
        <<<Tiles(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, count, out);
    return static_cast<int>(cudaGetLastError());
  });
}

int LoadCasts() {
  int first = cudaSuccess;
  for (int format = 0; format < kCastFormats; ++format) {
    const int error =
        WithCast(static_cast<CastFormat>(format), cudaErrorInvalidValue, [](auto cast) {
          const int encode = Load(CastEncodeKernel<decltype(cast)>);
          const int decode = Load(CastDecodeKernel<decltype(cast)>);
          return encode != cudaSuccess ? encode : decode;
        });
    if (first == cudaSuccess) first = error;
  }
  return first;
}

}  // namespace inccl::cuda
