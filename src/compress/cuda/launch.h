// SPDX-License-Identifier: Apache-2.0
//
// The table of kernels of libinccl_cuda.so, in plain C++ without CUDA headers. A call enqueues one
// kernel on the stream (a cudaStream_t) of the current device and returns; it neither allocates nor
// waits. It returns a cudaError_t (0: success), which error_name names. Kernels write the same
// bytes as the CPU's kernels (hbi/slice.h).
#ifndef INCCL_COMPRESS_CUDA_LAUNCH_H_
#define INCCL_COMPRESS_CUDA_LAUNCH_H_

#include <cstdint>

#include "compress/cuda/kernel_args.h"

namespace inccl::cuda {

struct Launchers {
  // Computes the side words of `count` elements, one per superblock.
  int (*side_words)(ElementType type, const void* elements, uint32_t count, uint32_t* words,
                    void* stream);
  int (*encode)(ElementType type, const EncodeArgs& args, void* stream);
  int (*add)(const AddArgs& args, void* stream);
  int (*decode)(ElementType type, const DecodeArgs& args, void* stream);
  int (*fold)(ElementType type, const FoldArgs& args, void* stream);

  // Encode to and decode from payloads of `count` elements; payload pointers have the alignment of
  // their elements.
  int (*cast_encode)(CastFormat format, const float* in, uint32_t count, uint8_t* out,
                     void* stream);
  int (*cast_decode)(CastFormat format, const uint8_t* in, uint32_t count, float* out,
                     void* stream);

  // Combines all inputs as kernels/reduce.h defines and writes the result to all outputs.
  int (*reduce)(const ReduceKernelArgs& args, void* stream) = nullptr;

  const char* (*error_name)(int error);

  // Loads all kernels into the current context. Otherwise the first launch of each kernel loads it,
  // and may then wait for all work on the device. nullptr: there is nothing to load.
  int (*load)() = nullptr;
};

// The name of the function that returns the table.
inline constexpr const char* kLaunchersSymbol = "inccl_cuda_launchers";

}  // namespace inccl::cuda

extern "C" __attribute__((visibility("default"))) const inccl::cuda::Launchers*
inccl_cuda_launchers();

#endif  // INCCL_COMPRESS_CUDA_LAUNCH_H_
