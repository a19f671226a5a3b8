// SPDX-License-Identifier: Apache-2.0
//
// What a size means for an operation: counts, buffers and bandwidths as nccl-tests define them.
#ifndef INCCL_PERF_SUPPORT_LAYOUT_H_
#define INCCL_PERF_SUPPORT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "perf/support/operation.h"

namespace inccl::perf {

// All in elements but `bytes`. Where a buffer is made of one segment for each rank, the count is a
// multiple of 16 bytes, rounded down. Buffers that only the root of a call has are the same on all
// ranks.
struct Layout {
  uint64_t bytes = 0;  // the size column: the larger one of a rank's two buffers
  uint64_t count = 0;  // the count column: the count argument of the call
  uint64_t send = 0;   // elements of the send buffer
  uint64_t recv = 0;   // elements of the receive buffer
  // Where send and recv begin in the one buffer of an in-place call.
  uint64_t in_place_send = 0;
  uint64_t in_place_recv = 0;
  uint64_t in_place = 0;  // elements of that buffer
};
Layout LayoutOf(Operation operation, uint64_t bytes, DataType type, int nranks, int rank);

bool HasInPlace(Operation operation);
// Whether the C API has a compressed form of the call.
bool HasCompressed(Operation operation);
// Every rank has the same result. Otherwise it lies in parts on the ranks, or on the root only.
bool ReplicatesResult(Operation operation);

// Bytes over time: GB/s, 0 in no time.
double AlgorithmBandwidth(uint64_t bytes, double microseconds);
// busbw / algbw: 2 (n-1)/n for all-reduce, 1 for broadcast, reduce and sendrecv, else (n-1)/n.
double BusFactor(Operation operation, int nranks);

// The sizes of a sweep from `min` to `max`: times `factor` if it is above 1, else plus `step`.
// kInvalidArgument if the sweep would not end.
Result<std::vector<uint64_t>> Sweep(uint64_t min, uint64_t max, uint64_t step, uint64_t factor);

// "64", "4K", "1.5M", "2G" (powers of 1024, letter of either case, "KB" and "KiB" too).
Result<uint64_t> ParseSize(const std::string& text);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_LAYOUT_H_
