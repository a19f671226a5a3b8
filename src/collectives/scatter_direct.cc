// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// The root sends each rank its segment.
void ScatterDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank(), root = phase->root();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int strand = phase->AddStrand(channel);
    if (rank != root) {
      const int lane = phase->AddLane(channel, kSumPlane, root, {rank});
      phase->AddStep(strand, rank, {phase->Result(lane)}, {phase->Output()});
      continue;
    }
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int lane = phase->AddLane(channel, kSumPlane, rank, {peer});
      phase->AddStep(strand, peer, {phase->Input()}, {phase->Result(lane)});
    }
    phase->AddStep(strand, rank, {phase->Input()}, {phase->Output()});  // last, because no other
                                                                        // rank waits for it
  }
}

}  // namespace inccl
