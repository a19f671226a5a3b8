/* SPDX-License-Identifier: Apache-2.0
 *
 * One process for each rank: an all-reduce on a stream. Ranks share devices if there are too few.
 *   mpirun -np 4 allreduce FILE      where the ranks pass the id by FILE, which does not exist yet
 */
#include "common.h"

enum { kCount = 1 << 16 };

int main(int argc, char** argv) {
  const int rank = Rank(), size = Size();
  int devices = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: allreduce FILE\n");
    return 2;
  }
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, size, ShareId(rank, argv[1]), rank));

  static float host[kCount];
  float* memory;
  cudaStream_t stream;
  for (int i = 0; i < kCount; ++i) host[i] = (float)(i % 100 + rank);
  CUDA(cudaMalloc((void**)&memory, sizeof host));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMemcpyAsync(memory, host, sizeof host, cudaMemcpyHostToDevice, stream));
  NCCL(ncclAllReduce(memory, memory, kCount, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaMemcpyAsync(host, memory, sizeof host, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));

  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    wrong += host[i] != (float)(size * (i % 100) + size * (size - 1) / 2);
  }
  printf("rank %d of %d: %d wrong\n", rank, size, wrong);
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));
  CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(stream));
  return wrong != 0;
}
