// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_steps.h"

namespace inccl {

void AllReduceInGroups(PhaseBuilder* phase, const RankGroups& groups) {
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Deal();
    steps.Collect();
    steps.Own(/*folds=*/true, /*sends=*/true);
    steps.Forward();
    steps.Gather();
  }
}

// As AllReduceDirect, but data passes from group to group once: one member adds up its group's
// contributions to a chunk of another group, receives the chunk's result and forwards it.
void AllReduceDirectGroups(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfNeighbours(phase->nranks(), phase->group()));
}

}  // namespace inccl
