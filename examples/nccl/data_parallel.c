/* SPDX-License-Identifier: Apache-2.0
 *
 * One process, a thread for each rank: each fits a line to its own points and averages gradients
 * with the others; in the end the ranks pass their losses around a ring.
 *   data_parallel [RANKS]
 */
#include <pthread.h>

#include "common.h"

enum { kPoints = 64, kSteps = 200, kMostRanks = 16 };
static int ranks = 2, devices = 0;
static ncclUniqueId id;

static void* Train(void* argument) {
  const int rank = (int)(long)argument;
  ncclComm_t comm;
  cudaStream_t stream;
  float model[2] = {0, 0}, gradient[2], loss = 0;
  float *memory, *seen;
  CUDA(cudaSetDevice(rank % devices));
  NCCL(ncclCommInitRank(&comm, ranks, id, rank));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMalloc((void**)&memory, sizeof gradient));
  CUDA(cudaMalloc((void**)&seen, sizeof loss));
  for (int step = 0; step < kSteps; ++step) {
    gradient[0] = gradient[1] = loss = 0;
    for (int i = 0; i < kPoints; ++i) {
      const float x = (float)(i * ranks + rank) / (float)(kPoints * ranks);
      const float error = model[0] + model[1] * x - (3 - 2 * x);
      gradient[0] += error / kPoints;
      gradient[1] += error * x / kPoints;
      loss += error * error / kPoints;
    }
    CUDA(cudaMemcpyAsync(memory, gradient, sizeof gradient, cudaMemcpyHostToDevice, stream));
    NCCL(ncclAllReduce(memory, memory, 2, ncclFloat, ncclAvg, comm, stream));
    CUDA(cudaMemcpyAsync(gradient, memory, sizeof gradient, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    model[0] -= gradient[0];
    model[1] -= gradient[1];
  }
  float received = 0;
  CUDA(cudaMemcpyAsync(memory, &loss, sizeof loss, cudaMemcpyHostToDevice, stream));
  NCCL(ncclGroupStart());
  NCCL(ncclSend(memory, 1, ncclFloat, (rank + 1) % ranks, comm, stream));
  NCCL(ncclRecv(seen, 1, ncclFloat, (rank + ranks - 1) % ranks, comm, stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaMemcpyAsync(&received, seen, sizeof received, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  printf("rank %d of %d: %.2f + %.2f x, learned: %s\n", rank, ranks, model[0], model[1],
         loss < 0.01F && received < 0.01F ? "yes" : "no");
  NCCL(ncclCommDestroy(comm));
  CUDA(cudaFree(memory));
  CUDA(cudaFree(seen));
  CUDA(cudaStreamDestroy(stream));
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t threads[kMostRanks];
  if (argc > 1) ranks = atoi(argv[1]);
  if (ranks < 1 || ranks > kMostRanks) return 2;
  CUDA(cudaGetDeviceCount(&devices));
  NCCL(ncclGetUniqueId(&id));
  for (int r = 0; r < ranks; ++r) pthread_create(&threads[r], NULL, Train, (void*)(long)r);
  for (int r = 0; r < ranks; ++r) pthread_join(threads[r], NULL);
  return 0;
}
