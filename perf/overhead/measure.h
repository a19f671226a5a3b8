// SPDX-License-Identifier: Apache-2.0
//
// What a communicator and a call cost beside the bytes they move: creation, memory, the first call,
// and the way of a call through checks, tuner and schedule.
#ifndef INCCL_PERF_OVERHEAD_MEASURE_H_
#define INCCL_PERF_OVERHEAD_MEASURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "perf/support/world.h"

namespace inccl::perf {

struct OverheadOptions {
  std::vector<uint64_t> sizes;      // bytes of the calls of which the first and second are timed
  std::vector<std::string> codecs;  // "none" among them: uncompressed
  uint64_t batches = 101, calls = 1000;
};

// Of one kind of call. A call of no elements takes the whole way but moves nothing.
struct EmptyCall {
  std::string name;  // "allreduce", "allreduce hbi:bits=6"
  double nanoseconds = 0;
};

struct FirstCalls {
  std::string name;  // as that of EmptyCall
  uint64_t bytes = 0;
  double first_us = 0, second_us = 0;  // from the first rank's start to the last one's end
};

struct Overhead {
  double init_us = 0;  // unique id and communicators, from the first rank's start to the last's end
  // Growth of the ranks' memory by the communicator: after its creation, and after the calls. All
  // ranks together, and of the rank that grew most.
  uint64_t created_bytes = 0, created_most = 0, used_bytes = 0, used_most = 0;
  std::vector<FirstCalls> first;
  std::vector<EmptyCall> empty;
};

// Every rank calls it, in a process that has had no communicator before; rank 0's value is
// complete.
Result<Overhead> MeasureOverhead(World& world, const OverheadOptions& options);

// The medians of several runs, number by number.
Overhead MedianOf(const std::vector<Overhead>& runs);

}  // namespace inccl::perf

#endif  // INCCL_PERF_OVERHEAD_MEASURE_H_
