// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// The first pass of the ring all-reduce: chunk c starts at the rank after c and ends, complete, at
// rank c.
void ReduceScatterRing(PhaseBuilder* phase) {
  const int n = phase->nranks();
  phase->set_chunks(n);
  const HostOrder ring(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const RingLanes lanes(phase, ring, channel, n - 1);
    const int strand = phase->AddStrand(channel);
    for (int hop = 0; hop < n; ++hop) {
      std::vector<Operand> inputs;
      if (hop > 0) inputs.push_back(phase->Sum(lanes.in(hop - 1), hop));
      inputs.push_back(phase->Input());
      const Operand output = hop < n - 1 ? phase->Sum(lanes.out(hop), hop + 1) : phase->Output();
      phase->AddStep(strand, ring.Shifted(-1 - hop), inputs, {output});
    }
  }
}

}  // namespace inccl
