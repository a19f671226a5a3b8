// SPDX-License-Identifier: Apache-2.0
//
// What a call needs besides its buffers: algorithm, schedule with its lanes, and segmentation. A
// plan is made at the first call of its kind, and kept.
#ifndef INCCL_COMMUNICATOR_PLANS_H_
#define INCCL_COMMUNICATOR_PLANS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/chunking.h"
#include "collectives/program.h"
#include "communicator/comm_options.h"
#include "topology/host_map.h"
#include "transport/transport.h"
#include "tuning/tuner.h"

namespace inccl {

struct Plan {
  CollectiveArgs args;
  // Expires with the codec, so another codec at the same address does not match.
  std::weak_ptr<const Codec> codec;
  bool below_min_bytes = false;
  bool chosen = false;  // false: an empty entry
  Choice choice;
  // From Bind on.
  const Program* program = nullptr;
  Chunking chunking;
};

// The plans of one communicator's calls among the same ranks. One thread at a time.
class Plans {
 public:
  struct Options {
    SlotBudget slots = {};
    const HostMap* hosts = nullptr;  // of the calls' ranks; nullptr: one host
    std::vector<int> members = {};   // the calls' ranks in the communicator, ascending; empty: all
    bool filtered = false;           // by the algorithms that the user admits
  };

  // All pointers outlive it.
  Plans(Options options, const CommOptions* comm, LaneTable* lanes)
      : options_(std::move(options)), comm_(*comm), lanes_(lanes) {}

  // The plan of such a call, not bound at the first one, valid until the next For. kInvalidArgument
  // if no algorithm can run the call. `below_min_bytes`: TunerCall's.
  Result<Plan*> For(const Call& call, bool below_min_bytes);
  // Gives a plan its lanes and cuts the call into slices. Does nothing for a plan that has them.
  Status Bind(const Call& call, Plan* plan);

  // The algorithm of such a call, without a plan.
  Result<Choice> ChoiceFor(const Call& call, bool below_min_bytes) const {
    return Choose(Tuned(call, below_min_bytes),
                  options_.filtered ? comm_.algorithms : AlgorithmFilter(), comm_.tuner_table);
  }
  // What the tuner sees of a call.
  TunerCall Tuned(const Call& call, bool below_min_bytes) const;

 private:
  static constexpr int kPlaceBits = 4;
  Result<const Program*> ProgramFor(const Call& call, const Codec& codec, const Choice& choice,
                                    const SlotOptions& slots);

  const Options options_;
  const CommOptions& comm_;
  LaneTable* const lanes_;
  std::map<uint64_t, std::unique_ptr<Program>> programs_;  // by collective, algorithm, root and
                                                           // side phases
  std::array<Plan, 1 << kPlaceBits> kept_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_PLANS_H_
