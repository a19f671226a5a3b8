// SPDX-License-Identifier: Apache-2.0
//
// Proves and prints schedules, for tools and tests: the library itself does not need it.
#ifndef INCCL_VERIFY_VALIDATE_H_
#define INCCL_VERIFY_VALIDATE_H_

#include <span>
#include <string>

#include "base/status.h"
#include "collectives/schedule.h"
#include "topology/host_map.h"

namespace inccl {

// What Validate proves about a communicator's schedules besides their correctness.
struct Proof {
  bool rank_order = false;  // every sum is folded as ((0 + 1) + 2) + ... + n-1: reproducible
  int steps = 0;  // messages on the longest chain of dependent steps of one window: the number of
                  // lane latencies in a call of one window
  // With hosts. A message is one share of a chunk on its way to one consumer.
  int crossing_messages = 0;   // data messages of one window from one host to another
  double crossing_shares = 0;  // what they carry, in windows of the phase
  int crossing_steps = 0;      // messages from host to host on the chain that has the most of them
};

// schedules[r] is rank r's. Runs `windows` windows symbolically with lanes of capacity 1 and checks
// that sends meet receives of the same chunk and format; that every output is the fold of exactly
// the contributions the collective promises (all-reduce: by the same expression on every rank);
// that `contributions` is the number actually added; that no output is written before its place has
// been read as input (in-place calls); that each lane end belongs to one strand; that all lanes end
// empty; and that the run ends. An error (kInternalError) has rank, strand, step and the finding;
// for a deadlock, the chain of strands that wait for each other. `hosts`: for the counts of what
// crosses hosts; no property that is proven depends on it.
Result<Proof> Validate(std::span<const Schedule> schedules, int windows = 3,
                       const HostMap* hosts = nullptr);

// A text for readers, for schedules that Validate accepts. NCCL's names (send, recv,
// recv-reduce-send, recv-copy-send, ...; "keep" for writes to scratch) are derived from the
// operands.
std::string DumpText(const Schedule& schedule);
// Graphviz DOT of one window of the whole communicator: nodes are steps, arrows are slices on
// lanes.
std::string DumpDot(std::span<const Schedule> schedules);

}  // namespace inccl

#endif  // INCCL_VERIFY_VALIDATE_H_
