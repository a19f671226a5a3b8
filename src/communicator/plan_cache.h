// SPDX-License-Identifier: Apache-2.0
//
// What a call needs besides its buffers: schedule, lanes and segmentation. The runner makes a plan
// at the first call of its kind and keeps it.
#ifndef INCCL_COMMUNICATOR_PLAN_CACHE_H_
#define INCCL_COMMUNICATOR_PLAN_CACHE_H_

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
#include "topology/host_map.h"
#include "transport/transport.h"
#include "tuning/tuner.h"

namespace inccl {

// Belongs to one communicator; one thread at a time.
class PlanCache {
 public:
  struct Options {
    SlotBudget slots = {};
    const HostMap* hosts = nullptr;  // of the calls' ranks; outlives the cache; nullptr: one host
    std::vector<int> members = {};   // the calls' ranks in the communicator, ascending; empty: all
  };
  struct Plan {
    CollectiveArgs args;
    // Expires with the codec, so another codec at the same address does not match.
    std::weak_ptr<const Codec> codec;
    bool below_min_bytes = false;
    Choice choice;
    Chunking chunking;
    const Program* program = nullptr;  // null: an empty entry
  };

  // `lanes` outlives it.
  PlanCache(Options options, LaneTable* lanes) : options_(std::move(options)), lanes_(lanes) {}

  // Returns the plan that Keep has stored for such a call; nullptr if there is none or another plan
  // has replaced it.
  const Plan* Find(const Call& call, bool below_min_bytes) const;
  Result<Plan> Make(const Call& call, const Codec& codec, const Choice& choice,
                    bool below_min_bytes);
  const Plan* Keep(Plan plan) {
    return &(kept_[PlaceOf(plan.args, plan.codec.lock().get())] = std::move(plan));
  }

  const HostMap* hosts() const { return options_.hosts; }

 private:
  static constexpr int kPlaceBits = 4;
  static size_t PlaceOf(const CollectiveArgs& args, const Codec* codec);
  Result<const Program*> FindProgram(const Call& call, const Codec& codec, const Choice& choice,
                                     const SlotOptions& slots);

  const Options options_;
  LaneTable* const lanes_;
  std::map<uint64_t, std::unique_ptr<Program>> programs_;  // by collective, algorithm, root and
                                                           // side phases
  std::array<Plan, 1 << kPlaceBits> kept_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_PLAN_CACHE_H_
