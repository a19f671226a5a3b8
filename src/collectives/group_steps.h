// SPDX-License-Identifier: Apache-2.0
//
// The strands of two-shot algorithms over groups of ranks, where every chunk passes from group to
// group once in each direction.
#ifndef INCCL_COLLECTIVES_GROUP_STEPS_H_
#define INCCL_COLLECTIVES_GROUP_STEPS_H_

#include <vector>

#include "collectives/rank_groups.h"
#include "collectives/schedule_builder.h"

namespace inccl {

// The two-shot all-reduce over groups.
void AllReduceInGroups(PhaseBuilder* phase, const RankGroups& groups);

// Adds one strand per call to the phase of one rank, on one channel. Of a reduction: Deal, Collect,
// Own; of a distribution: Own, Forward, Gather.
class GroupSteps {
 public:
  GroupSteps(PhaseBuilder* phase, const RankGroups& groups, int channel);

  // Sends this rank's contributions to the owners and collectors of its group: first for chunks of
  // its own group, then for those of the next group, and so on.
  void Deal();
  // Adds up the contributions of this rank's group to chunks of other groups, and sends the sums to
  // the owners.
  void Collect();
  // For this rank's chunks. `folds`: adds the parts of its own group and the sums of the others, by
  // group and rank; else the input is the result. `sends`: sends the result to its readers.
  void Own(bool folds, bool sends);
  // Receives results of chunks that this rank collects, and forwards them to its group.
  void Forward();
  // Receives results from the owners and collectors of this rank's group.
  void Gather();

 private:
  // The chunks of the group at distance `shift` after this rank's that `peer` collects or owns.
  std::vector<int> ChunksOf(int peer, int shift, int pass) const;
  // Calls visit(peer, chunk, shift) for all chunks that the other members collect or own, in an
  // order that all members share: in a pass and for a group, each member's first chunk before any
  // member's second. This round-robin over members avoids circular waits for slots.
  template <typename Visit>
  void InStep(const Visit& visit) const;
  // The parts of this rank's group, by rank: its own input, and those from lanes of this plane.
  std::vector<Operand> Members(int plane);
  // The lane on which this rank receives the result of `chunk` from its owner.
  Operand FromOwner(int chunk);

  PhaseBuilder* const phase_;
  const RankGroups& groups_;
  LaneSet lanes_;
  const int channel_, rank_, group_;
  std::vector<int> peers_;  // the others of the group, beginning with the next one
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_GROUP_STEPS_H_
