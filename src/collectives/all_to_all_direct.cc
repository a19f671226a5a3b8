// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Every rank sends to all others, beginning with the next one, and receives from all others,
// beginning with the previous one: in every round each rank has one partner of each kind.
void AllToAllDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank();
  const auto chunk = [n](int source, int destination) { return source * n + destination; };
  phase->set_chunks(n * n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int deal = phase->AddStrand(channel);
    const int collect = phase->AddStrand(channel);
    for (int i = 1; i < n; ++i) {
      const int to = phase->Shifted(i), from = phase->Shifted(-i);
      const int send = phase->AddLane(channel, kSumPlane, rank, {to});
      const int recv = phase->AddLane(channel, kSumPlane, from, {rank});
      phase->AddStep(deal, chunk(rank, to), {phase->Input()}, {phase->Result(send)});
      phase->AddStep(collect, chunk(from, rank), {phase->Result(recv)}, {phase->Output()});
    }
    // The rank copies its own segment while the first slices travel.
    phase->AddStep(deal, chunk(rank, rank), {phase->Input()}, {phase->Output()});
  }
}

}  // namespace inccl
