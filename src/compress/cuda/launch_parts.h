// SPDX-License-Identifier: Apache-2.0
//
// The functions of the table in launch.h, by file.
#ifndef INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_
#define INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "compress/cuda/launch.h"

namespace inccl::cuda {

// hbi.cu
int LaunchSideWords(ElementType type, const void* elements, uint32_t count, uint32_t* words,
                    void* stream);
int LaunchEncode(ElementType type, const EncodeArgs& args, void* stream);
int LaunchAdd(const AddArgs& args, void* stream);
int LaunchDecode(ElementType type, const DecodeArgs& args, void* stream);
int LaunchFold(ElementType type, const FoldArgs& args, void* stream);
int LoadSlices();

// casts.cu
int LaunchCastEncode(CastFormat format, const float* in, uint32_t count, uint8_t* out,
                     void* stream);
int LaunchCastDecode(CastFormat format, const uint8_t* in, uint32_t count, float* out,
                     void* stream);
int LoadCasts();

// reduce.cu
int LaunchReduce(const ReduceKernelArgs& args, void* stream);
int LoadReduce();

// Loads a kernel, as a side effect of asking for its attributes.
template <class Kernel>
int Load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) cudaGetLastError();  // clears the runtime's own record of the error
  return error;
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_
