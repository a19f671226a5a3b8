// SPDX-License-Identifier: Apache-2.0
//
// The kernels of plain reductions: one per kind of element, for all operations.
#include <cuda_runtime.h>

#include <algorithm>

#include "compress/cuda/launch_parts.h"
#include "compress/cuda/reduce.h"

namespace inccl::cuda {
namespace {

constexpr uint32_t kBlocksPerProcessor = 4;  // thread blocks per multiprocessor
// Many more than any device runs at once, so that no multiprocessor is idle for long at the end.
constexpr uint64_t kMostBlocks = 8192;

template <class Element>
__global__ void __launch_bounds__(kReduceThreads, kBlocksPerProcessor)
    ReduceKernel(const __grid_constant__ ReduceKernelArgs args,
                 const __grid_constant__ ReducePlan plan) {
  ReduceThread<Element>(args, plan, {threadIdx.x, blockIdx.x, gridDim.x});
}

}  // namespace

int LaunchReduce(const ReduceKernelArgs& args, void* stream) {
  bool misaligned = false;
  if (!IsReduction(args, &misaligned)) {
    return misaligned ? cudaErrorMisalignedAddress : cudaErrorInvalidValue;
  }
  if (args.count == 0) return cudaSuccess;
  const ReducePlan plan = PlanReduction(args);
  return WithReduced(args.type, cudaErrorInvalidValue, [&](auto element) {
    using Element = decltype(element);
    const auto blocks = static_cast<uint32_t>(std::min(ReduceBlocks<Element>(plan), kMostBlocks));
    ReduceKernel<Element>
        <<<blocks, kReduceThreads, 0, static_cast<cudaStream_t>(stream)>>>(args, plan);
    return static_cast<int>(cudaGetLastError());
  });
}

int LoadReduce() {
  int first = cudaSuccess;
  for (int type = 0; type < kDataTypes; ++type) {
    const int error =
        WithReduced(static_cast<DataType>(type), cudaErrorInvalidValue,
                    [](auto element) { return Load(ReduceKernel<decltype(element)>); });
    if (first == cudaSuccess) first = error;
  }
  return first;
}

}  // namespace inccl::cuda
