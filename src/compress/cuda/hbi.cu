// SPDX-License-Identifier: Apache-2.0
//
// The kernels of HBI. A thread block of 8 warps handles a tile of 32 superblocks.
#include <cuda_runtime.h>

#include "compress/cuda/device_warp.h"
#include "compress/cuda/launch_parts.h"
#include "compress/cuda/warp_slice.h"

namespace inccl::cuda {
namespace {

constexpr uint32_t kThreads = kWarpsPerTile * kWarp;
// Thread blocks per multiprocessor: as many as fit without spilling registers.
constexpr uint32_t kBlocksPerProcessor = 4;
constexpr uint32_t kFoldBlocksPerProcessor = 3;

// The index of the warp in its block. The shuffle from lane 0 tells the compiler that it is equal
// in all lanes.
__device__ uint32_t Part() { return __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0); }

template <class Type>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    SideWordsKernel(const void* elements, uint32_t count, uint32_t* words) {
  SideWordsTile<Type>(DeviceWarp(), elements, count, words, blockIdx.x, Part());
}

template <class Type, bool kAdd>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    EncodeKernel(const __grid_constant__ EncodeArgs args) {
  EncodeTile<Type, kAdd>(DeviceWarp(), args, blockIdx.x, Part());
}

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    AddKernel(const __grid_constant__ AddArgs args) {
  AddTile(DeviceWarp(), args, blockIdx.x, Part());
}

template <class Type>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    DecodeKernel(const __grid_constant__ DecodeArgs args) {
  DecodeTile<Type>(DeviceWarp(), args, blockIdx.x, Part());
}

template <class Type>
__global__ void __launch_bounds__(kThreads, kFoldBlocksPerProcessor)
    FoldKernel(const __grid_constant__ FoldArgs args, uint32_t contributions) {
  FoldTile<Type>(DeviceWarp(), args, contributions, blockIdx.x, Part());
}

// Calls launch(Type{}) for the element type.
template <class Launch>
int WithType(ElementType type, Launch launch) {
  switch (type) {
    case ElementType::kFloat32: launch(Fp32{}); break;
    case ElementType::kFloat16: launch(Fp16{}); break;
    case ElementType::kBfloat16: launch(Bf16{}); break;
    case ElementType::kFloat64: launch(Fp64{}); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

bool Aligned(const PackedArgs& packed, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(packed.data) % bytes == 0;
}

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

int LaunchSideWords(ElementType type, const void* elements, uint32_t count, uint32_t* words,
                    void* stream) {
  const uint32_t tiles = SliceArgs{.count = count}.tiles();
  if (tiles == 0) return cudaSuccess;
  return WithType(type, [&](auto chosen) {
    SideWordsKernel<decltype(chosen)>
        <<<tiles, kThreads, 0, Stream(stream)>>>(elements, count, words);
  });
}

int LaunchEncode(ElementType type, const EncodeArgs& args, void* stream) {
  if (!Aligned(args.in, 4) || !Aligned(args.out, 4)) return cudaErrorMisalignedAddress;
  const uint32_t tiles = args.slice.tiles();
  if (tiles == 0) return cudaSuccess;
  return WithType(type, [&](auto chosen) {
    using Type = decltype(chosen);
    if (args.in.data != nullptr) {
      EncodeKernel<Type, true><<<tiles, kThreads, 0, Stream(stream)>>>(args);
    } else {
      EncodeKernel<Type, false><<<tiles, kThreads, 0, Stream(stream)>>>(args);
    }
  });
}

int LaunchAdd(const AddArgs& args, void* stream) {
  if (!Aligned(args.a, 16) || !Aligned(args.b, 16) || !Aligned(args.out, 16)) {
    return cudaErrorMisalignedAddress;
  }
  const uint32_t tiles = args.slice.tiles();
  if (tiles == 0) return cudaSuccess;
  AddKernel<<<tiles, kThreads, 0, Stream(stream)>>>(args);
  return cudaGetLastError();
}

int LaunchDecode(ElementType type, const DecodeArgs& args, void* stream) {
  if (!Aligned(args.in, 4)) return cudaErrorMisalignedAddress;
  const uint32_t tiles = args.slice.tiles();
  if (tiles == 0) return cudaSuccess;
  return WithType(type, [&](auto chosen) {
    DecodeKernel<decltype(chosen)><<<tiles, kThreads, 0, Stream(stream)>>>(args);
  });
}

int LaunchFold(ElementType type, const FoldArgs& args, void* stream) {
  if (args.source_count > kMaxSources) return cudaErrorInvalidValue;
  uint32_t contributions = args.own != nullptr ? 1 : 0;
  for (uint32_t i = 0; i < args.source_count; ++i) {
    if (!Aligned(args.sources[i], 4)) return cudaErrorMisalignedAddress;
    contributions += args.sources[i].contributions;
  }
  if (!Aligned(args.sum, 4) || !Aligned(args.result, 4)) return cudaErrorMisalignedAddress;
  const uint32_t tiles = args.slice.tiles();
  if (tiles == 0) return cudaSuccess;
  return WithType(type, [&](auto chosen) {
    FoldKernel<decltype(chosen)><<<tiles, kThreads, 0, Stream(stream)>>>(args, contributions);
  });
}

int LoadSlices() {
  int first = Load(AddKernel);
  const auto load = [&](auto* kernel) {
    if (const int error = Load(kernel); first == cudaSuccess) first = error;
  };
  for (const ElementType type : {ElementType::kFloat32, ElementType::kFloat16,
                                 ElementType::kBfloat16, ElementType::kFloat64}) {
    WithType(type, [&](auto chosen) {
      using Type = decltype(chosen);
      load(SideWordsKernel<Type>);
      load(EncodeKernel<Type, true>);
      load(EncodeKernel<Type, false>);
      load(DecodeKernel<Type>);
      load(FoldKernel<Type>);
    });
  }
  return first;
}

}  // namespace inccl::cuda
