// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_steps.h"

namespace inccl {

// The second half of the hierarchical all-reduce: every segment goes to each other host once, to
// the rank that forwards it there.
void AllGatherHierarchical(PhaseBuilder* phase) {
  const RankGroups groups = RankGroups::OfHosts(*phase->hosts());
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Own(/*folds=*/false, /*sends=*/true);
    steps.Forward();
    steps.Gather();
  }
}

}  // namespace inccl
