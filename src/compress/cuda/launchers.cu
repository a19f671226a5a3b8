// SPDX-License-Identifier: Apache-2.0
//
// The table that libinccl_cuda.so exports.
#include <cuda_runtime.h>

#include "compress/cuda/launch_parts.h"

namespace inccl::cuda {
namespace {

const char* ErrorName(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

int LoadAll() {
  const int slices = LoadSlices();
  const int casts = LoadCasts();
  const int reductions = LoadReduce();
  if (slices != cudaSuccess) return slices;
  return casts != cudaSuccess ? casts : reductions;
}

}  // namespace
}  // namespace inccl::cuda

const inccl::cuda::Launchers* inccl_cuda_launchers() {
  using namespace inccl::cuda;  // NOLINT(google-build-using-namespace)
  static constexpr Launchers kLaunchers = {.side_words = LaunchSideWords,
                                           .encode = LaunchEncode,
                                           .add = LaunchAdd,
                                           .decode = LaunchDecode,
                                           .fold = LaunchFold,
                                           .cast_encode = LaunchCastEncode,
                                           .cast_decode = LaunchCastDecode,
                                           .reduce = LaunchReduce,
                                           .error_name = ErrorName,
                                           .load = LoadAll};
  return &kLaunchers;
}
