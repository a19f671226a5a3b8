// SPDX-License-Identifier: Apache-2.0
// Four processes sum a vector, compressed. Rank 0's id goes to the others through a pipe.
#include <inccl/ccl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRanks = 4, kCount = 1 << 20 };
static float values[kCount];

static int run(int rank, const int ends[2]) {
  ccl_unique_id_t id;
  ccl_comm_t comm = NULL;
  ccl_result_t r = rank == 0 ? ccl_get_unique_id(&id) : CCL_SUCCESS;
  for (int i = 1; rank == 0 && r == CCL_SUCCESS && i < kRanks; ++i) {
    if (write(ends[1], &id, sizeof id) != sizeof id) return 1;
  }
  close(ends[1]);  // so that no rank waits for the id of a rank that has died
  if (rank != 0 && read(ends[0], &id, sizeof id) != sizeof id) return 1;
  if (r == CCL_SUCCESS) r = ccl_comm_init_rank(&comm, kRanks, id, rank);
  for (int i = 0; i < kCount; ++i) values[i] = (float)(i % 100 * (rank + 1));
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;  // codec NULL: the default, 6 bits per element
  how.stats = &stats;
  if (r == CCL_SUCCESS)
    r = ccl_allreduce_compressed(values, values, kCount, CCL_FLOAT32, CCL_SUM, &how, comm, NULL);
  if (r != CCL_SUCCESS) return fprintf(stderr, "rank %d: %s\n", rank, ccl_get_last_error(NULL));
  if (rank == 0) printf("%.2f bits, ratio %.1f: 990 is %g\n", stats.bits, stats.ratio, values[99]);
  return ccl_comm_destroy(comm) != CCL_SUCCESS;
}

int main(void) {
  int ends[2], status = 0, failed = pipe(ends) != 0;
  for (int rank = 0; rank < kRanks; ++rank)
    if (fork() == 0) return run(rank, ends) != 0;
  close(ends[1]);
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
