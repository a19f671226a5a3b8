// SPDX-License-Identifier: Apache-2.0
//
// The functions of the table in launch.h, file by file.
#ifndef INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_
#define INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_

#include <cstdint>

#include "compress/cuda/launch.h"

namespace inccl::cuda {

// hbi.cu
int LaunchBlockCodes(ElementType type, const void* elements, uint32_t count, uint8_t* codes,
                     void* stream);
int LaunchEncode(ElementType type, const EncodeArgs& args, void* stream);
int LaunchAdd(const AddArgs& args, void* stream);
int LaunchDecode(ElementType type, const DecodeArgs& args, void* stream);
int LaunchFold(ElementType type, const FoldArgs& args, void* stream);

// casts.cu
int LaunchCastEncode(CastFormat format, const float* in, uint32_t count, uint8_t* out,
                     void* stream);
int LaunchCastDecode(CastFormat format, const uint8_t* in, uint32_t count, float* out,
                     void* stream);

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_LAUNCH_PARTS_H_
