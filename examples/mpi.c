// SPDX-License-Identifier: Apache-2.0
// Under mpirun: the same sum by inccl, compressed and not, and by MPI. inccl itself needs no MPI;
// it takes rank, size and meeting point from mpirun's environment.
#include <inccl/ccl.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>

enum { kCount = 1 << 18 };
static float input[kCount], by_mpi[kCount], exact[kCount], compressed[kCount];

// The largest difference from MPI's result, over all ranks; without one, its largest element.
static float difference(const float* result) {
  float mine = 0, all = 0;
  for (int i = 0; i < kCount; ++i) {
    mine = fmaxf(mine, fabsf((result != NULL ? result[i] : 0) - by_mpi[i]));
  }
  MPI_Allreduce(&mine, &all, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

#define TRY(call)                                                   \
  do {                                                              \
    if ((call) != CCL_SUCCESS) {                                    \
      fprintf(stderr, "%s: %s\n", #call, ccl_get_last_error(NULL)); \
      MPI_Abort(MPI_COMM_WORLD, 1);                                 \
    }                                                               \
  } while (0)

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < kCount; ++i) input[i] = (float)(i % 1000 - 500 + rank);  // sums are exact
  MPI_Allreduce(input, by_mpi, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);

  ccl_comm_t comm = NULL;
  TRY(ccl_comm_init_env(&comm, NULL));
  TRY(ccl_allreduce(input, exact, kCount, CCL_FLOAT32, CCL_SUM, comm, NULL));
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.stats = &stats;
  TRY(ccl_allreduce_compressed(input, compressed, kCount, CCL_FLOAT32, CCL_SUM, &how, comm, NULL));
  TRY(ccl_comm_destroy(comm));

  const float uncompressed_error = difference(exact), error = difference(compressed);
  const float percent = 100 / difference(NULL);
  const int right = uncompressed_error == 0 && error <= stats.error_bound;
  if (rank == 0) {
    printf("uncompressed: differs from MPI by %g\n", uncompressed_error);
    printf("%.2f bits: differs from MPI by %.1f %% of the largest sum (guaranteed: %.1f %%)\n",
           stats.bits, error * percent, stats.error_bound * percent);
    printf("%s\n", right ? "right" : "WRONG");
  }
  MPI_Finalize();
  return right ? 0 : 1;
}
