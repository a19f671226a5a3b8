// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_steps.h"

namespace inccl {

// Two-shot in groups that are hosts. The hosts own equal parts of the window, so each sends and
// receives 2(H-1)/H of it, whatever the numbers of their ranks.
void AllReduceHierarchical(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfHostsEvenly(*phase->hosts()));
}

// The same with chunk c at rank c: for the side information of segments.
void AllReduceSegmentsHierarchical(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfHosts(*phase->hosts()));
}

}  // namespace inccl
