// SPDX-License-Identifier: Apache-2.0
//
// Marks functions that run both on the CPU and in CUDA kernels. Constexpr functions do so without
// the mark (nvcc's --expt-relaxed-constexpr). Other compilers see an empty macro.
#ifndef INCCL_BASE_HOST_DEVICE_H_
#define INCCL_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define INCCL_HOST_DEVICE __host__ __device__
#else
#define INCCL_HOST_DEVICE
#endif

#endif  // INCCL_BASE_HOST_DEVICE_H_
