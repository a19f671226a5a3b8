// SPDX-License-Identifier: Apache-2.0
// The ranks are threads of one process, each with its own end of the communicator.
#include <inccl/ccl.h>
#include <pthread.h>
#include <stdio.h>

enum { kRanks = 4 };
static ccl_comm_t comms[kRanks];

static void* run(void* argument) {
  const int rank = (int)((ccl_comm_t*)argument - comms);
  int value = rank + 1;
  if (ccl_allreduce(&value, &value, 1, CCL_INT32, CCL_SUM, comms[rank], NULL) != CCL_SUCCESS) {
    fprintf(stderr, "%s\n", ccl_get_last_error(NULL));
    return NULL;
  }
  printf("rank %d: the sum is %d\n", rank, value);
  return argument;
}

int main(void) {
  if (ccl_comm_init_all(comms, kRanks, NULL) != CCL_SUCCESS) {
    fprintf(stderr, "%s\n", ccl_get_last_error(NULL));
    return 1;
  }
  pthread_t threads[kRanks];
  int failed = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (pthread_create(&threads[rank], NULL, run, &comms[rank]) != 0) return 1;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    void* result = NULL;
    pthread_join(threads[rank], &result);
    failed |= result == NULL;
  }
  for (int rank = 0; rank < kRanks; ++rank) failed |= ccl_comm_destroy(comms[rank]) != CCL_SUCCESS;
  return failed;
}
