// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// The first shot of the two-shot all-reduce: every part goes straight to its owner, which adds the
// parts in rank order.
void ReduceScatterDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int deal = phase->AddStrand(channel);
    const int own = phase->AddStrand(channel);
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int lane = phase->AddLane(channel, kSumPlane, rank, {peer});
      phase->AddStep(deal, peer, {phase->Input()}, {phase->Sum(lane, 1)});
    }
    std::vector<Operand> parts;
    for (int q = 0; q < n; ++q) {
      parts.push_back(q == rank ? phase->Input()
                                : phase->Sum(phase->AddLane(channel, kSumPlane, q, {rank}), 1));
    }
    phase->AddStep(own, rank, parts, {phase->Output()});
  }
}

}  // namespace inccl
