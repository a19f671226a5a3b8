// SPDX-License-Identifier: Apache-2.0
// One thread drives all ranks. On each rank's stream: a value goes once around the ring, hop by hop
// by send and receive, then all ranks average what they have. A group starts one hop of all ranks
// together; streams keep the hops of a rank in order, so the program waits only at the end.
#include <inccl/ccl.h>
#include <stdio.h>

enum { kRanks = 3 };

#define TRY(call)                                                   \
  do {                                                              \
    if ((call) != CCL_SUCCESS) {                                    \
      fprintf(stderr, "%s: %s\n", #call, ccl_get_last_error(NULL)); \
      return 1;                                                     \
    }                                                               \
  } while (0)

int main(void) {
  ccl_comm_t comms[kRanks];
  ccl_stream_t streams[kRanks];
  double hops[kRanks + 1][kRanks], mean[kRanks];  // hops[h][r]: what rank r has after h hops
  TRY(ccl_comm_init_all(comms, kRanks, NULL));
  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ccl_stream_create(&streams[rank]));
    hops[0][rank] = rank;
  }

  for (int hop = 0; hop < kRanks; ++hop) {
    TRY(ccl_group_start());
    for (int rank = 0; rank < kRanks; ++rank) {
      const int right = (rank + 1) % kRanks, left = (rank + kRanks - 1) % kRanks;
      TRY(ccl_send(&hops[hop][rank], 1, CCL_FLOAT64, right, comms[rank], streams[rank]));
      TRY(ccl_recv(&hops[hop + 1][rank], 1, CCL_FLOAT64, left, comms[rank], streams[rank]));
    }
    TRY(ccl_group_end());
  }
  TRY(ccl_group_start());
  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ccl_allreduce(&hops[1][rank], &mean[rank], 1, CCL_FLOAT64, CCL_AVG, comms[rank],
                      streams[rank]));
  }
  TRY(ccl_group_end());

  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ccl_stream_synchronize(streams[rank]));
    printf("rank %d: from the left %g, back at home %g, mean %g\n", rank, hops[1][rank],
           hops[kRanks][rank], mean[rank]);
    TRY(ccl_stream_destroy(streams[rank]));
  }
  for (int rank = 0; rank < kRanks; ++rank) TRY(ccl_comm_destroy(comms[rank]));
  return 0;
}
