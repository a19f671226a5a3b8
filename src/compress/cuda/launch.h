// SPDX-License-Identifier: Apache-2.0
//
// The kernels of libinccl_cuda.so, for whoever has loaded it: plain C++, no header of CUDA. A call
// enqueues one kernel on the stream (a cudaStream_t) of the current device and returns; nothing is
// allocated, nothing waits. It returns a cudaError_t, 0 if all is well; error_name says which.
// What a kernel writes equals what the CPU's kernels write (hbi/slice.h), byte for byte.
#ifndef INCCL_COMPRESS_CUDA_LAUNCH_H_
#define INCCL_COMPRESS_CUDA_LAUNCH_H_

#include <cstdint>

#include "compress/cuda/kernel_args.h"

namespace inccl::cuda {

struct Launchers {
  // Scale codes of `count` elements, 8 per superblock.
  int (*block_codes)(ElementType type, const void* elements, uint32_t count, uint8_t* codes,
                     void* stream);
  int (*encode)(ElementType type, const EncodeArgs& args, void* stream);
  int (*add)(const AddArgs& args, void* stream);
  int (*decode)(ElementType type, const DecodeArgs& args, void* stream);
  int (*fold)(ElementType type, const FoldArgs& args, void* stream);

  // Payloads of `count` elements; `out` and `in` have the alignment of their elements.
  int (*cast_encode)(CastFormat format, const float* in, uint32_t count, uint8_t* out,
                     void* stream);
  int (*cast_decode)(CastFormat format, const uint8_t* in, uint32_t count, float* out,
                     void* stream);

  // Elements of all inputs, combined as kernels/reduce.h says, to all outputs.
  int (*reduce)(const ReduceKernelArgs& args, void* stream) = nullptr;

  const char* (*error_name)(int error);

  // Loads all kernels into the current context. Else each is loaded at its first launch, which then
  // may wait for all that runs there. nullptr: there is nothing to load.
  int (*load)() = nullptr;
};

// The one symbol that the library exports, under this name.
inline constexpr const char* kLaunchersSymbol = "inccl_cuda_launchers";

}  // namespace inccl::cuda

extern "C" __attribute__((visibility("default"))) const inccl::cuda::Launchers*
inccl_cuda_launchers();

#endif  // INCCL_COMPRESS_CUDA_LAUNCH_H_
