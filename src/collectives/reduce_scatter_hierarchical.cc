// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_steps.h"

namespace inccl {

// The first half of the hierarchical all-reduce: every host sends one sum per segment of a rank on
// another host.
void ReduceScatterHierarchical(PhaseBuilder* phase) {
  const RankGroups groups = RankGroups::OfHosts(*phase->hosts());
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Deal();
    steps.Collect();
    steps.Own(/*folds=*/true, /*sends=*/false);
  }
}

}  // namespace inccl
