// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Every rank sends its segment to all others at once, and writes what it sends to its own output.
void AllGatherDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int send = phase->AddStrand(channel);
    const int gather = phase->AddStrand(channel);
    const int lane = phase->AddLane(channel, kResultPlane, rank, phase->AllBut(rank));
    phase->AddStep(send, rank, {phase->Input()}, {phase->Result(lane), phase->Output()});
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int from = phase->AddLane(channel, kResultPlane, peer, phase->AllBut(peer));
      phase->AddStep(gather, peer, {phase->Result(from)}, {phase->Output()});
    }
  }
}

}  // namespace inccl
