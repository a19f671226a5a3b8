// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Every rank sends its segment straight to the root.
void GatherDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank(), root = phase->root();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int strand = phase->AddStrand(channel);
    if (rank != root) {
      const int lane = phase->AddLane(channel, kSumPlane, rank, {root});
      phase->AddStep(strand, rank, {phase->Input()}, {phase->Result(lane)});
      continue;
    }
    // The root copies its own segment first, while the others are still on their way.
    phase->AddStep(strand, rank, {phase->Input()}, {phase->Output()});
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int lane = phase->AddLane(channel, kSumPlane, peer, {rank});
      phase->AddStep(strand, peer, {phase->Result(lane)}, {phase->Output()});
    }
  }
}

}  // namespace inccl
