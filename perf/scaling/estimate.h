// SPDX-License-Identifier: Apache-2.0
//
// The time of an all-reduce by a formula, for communicators that are too large to simulate.
#ifndef INCCL_PERF_SCALING_ESTIMATE_H_
#define INCCL_PERF_SCALING_ESTIMATE_H_

#include "collectives/algorithms.h"
#include "collectives/call.h"
#include "perf/scaling/machine.h"
#include "perf/scaling/payloads.h"

namespace inccl::perf {

struct EqualHostsShape {
  int hosts = 1, per_host = 1;
  int ranks() const { return hosts * per_host; }
};

struct TimeEstimate {
  double link = 0;       // seconds that the busiest link transfers
  double processor = 0;  // seconds that the busiest processor works
  double chain = 0;      // seconds of the longest chain of dependent messages
  // The two that overlap, and what does not.
  double seconds() const { return (link > processor ? link : processor) + chain; }
};

// Of the algorithms ring, direct in two shots, tree, recursive doubling and hierarchical; with
// others all are 0. Messages that wait for each other on links or processors beyond these sums are
// not in it.
TimeEstimate Estimate(Algorithm algorithm, const EqualHostsShape& shape, const Chunking& chunking,
                      const Machine& machine, Payloads* payloads);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SCALING_ESTIMATE_H_
