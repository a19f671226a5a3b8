// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// All ranks send to the root, which adds in rank order.
void ReduceDirect(PhaseBuilder* phase) {
  const int rank = phase->rank(), root = phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int strand = phase->AddStrand(channel);
    if (rank != root) {
      const int lane = phase->AddLane(channel, kSumPlane, rank, {root});
      phase->AddStep(strand, 0, {phase->Input()}, {phase->Sum(lane, 1)});
      continue;
    }
    std::vector<Operand> parts;
    for (int q = 0; q < phase->nranks(); ++q) {
      parts.push_back(q == root ? phase->Input()
                                : phase->Sum(phase->AddLane(channel, kSumPlane, q, {root}), 1));
    }
    phase->AddStep(strand, 0, parts, {phase->Output()});
  }
}

}  // namespace inccl
