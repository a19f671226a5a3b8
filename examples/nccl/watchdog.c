/* SPDX-License-Identifier: Apache-2.0
 *
 * The non-blocking life cycle, as PyTorch uses it: a rank polls, and a second thread, the watchdog,
 * aborts the communicator when it takes too long.
 *   watchdog FILE [RANK]      RANK never makes its call; the watchdogs of the others abort
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "common.h"

enum { kCount = 1 << 16, kLimitMs = 1000 };
static ncclComm_t comm;
static atomic_int working, aborted;

static ncclResult_t Wait(ncclComm_t on) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    NCCL(ncclCommGetAsyncError(on, &state));
    sched_yield();
  }
  return state;
}

/* What may be in progress is not an error. */
static void Started(ncclResult_t result) {
  if (result != ncclInProgress) NCCL(result);
}

static void* Watch(void* unused) {
  for (int ms = 0; atomic_load(&working) != 0; ++ms) {
    if (ms == kLimitMs) {
      atomic_store(&aborted, 1);
      NCCL(ncclCommAbort(comm));
      break;
    }
    usleep(1000);
  }
  return unused;
}

int main(int argc, char** argv) {
  const int rank = Rank(), size = Size(), absent = argc > 2 ? atoi(argv[2]) : -1;
  if (argc < 2) return 2;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Started(ncclCommInitRankConfig(&comm, size, ShareId(rank, argv[1]), rank, &config));
  NCCL(Wait(comm));

  ncclComm_t part = NULL;
  Started(ncclCommSplit(comm, 0, rank, &part, &config));
  NCCL(Wait(comm));
  while (part == NULL) sched_yield();
  NCCL(Wait(part));

  float* memory;
  cudaStream_t stream;
  CUDA(cudaMalloc((void**)&memory, kCount * sizeof(float)));
  CUDA(cudaStreamCreate(&stream));
  ncclResult_t result = ncclSuccess;
  if (rank == absent) {
    usleep(3 * kLimitMs * 1000);
    NCCL(ncclCommAbort(comm));
  } else {
    pthread_t watchdog;
    atomic_store(&working, 1);
    pthread_create(&watchdog, NULL, Watch, NULL);
    result = ncclAllReduce(memory, memory, kCount, ncclFloat, ncclSum, comm, stream);
    CUDA(cudaStreamSynchronize(stream));
    if (result == ncclSuccess || result == ncclInProgress) result = Wait(comm);
    atomic_store(&working, 0);
    pthread_join(watchdog, NULL);
    printf("rank %d of %d: %s\n", rank, size,
           atomic_load(&aborted) ? "aborted" : ncclGetErrorString(result));
    if (absent >= 0 && !atomic_load(&aborted)) NCCL(ncclCommAbort(comm));
  }
  if (absent < 0) {
    Started(ncclCommFinalize(comm));
    NCCL(Wait(comm));
    NCCL(ncclCommDestroy(comm));
  }
  NCCL(ncclCommAbort(part));
  CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(stream));
  return 0;
}
