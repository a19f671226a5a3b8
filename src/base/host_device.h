// SPDX-License-Identifier: Apache-2.0
//
// Functions that run on the CPU and in CUDA kernels from one source. What is constexpr does so
// anyway (nvcc's --expt-relaxed-constexpr); others carry this. Elsewhere it is nothing.
#ifndef INCCL_BASE_HOST_DEVICE_H_
#define INCCL_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define INCCL_HOST_DEVICE __host__ __device__
#else
#define INCCL_HOST_DEVICE
#endif

#endif  // INCCL_BASE_HOST_DEVICE_H_
