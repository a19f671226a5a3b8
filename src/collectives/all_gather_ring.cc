// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Every rank's segment passes the ring once, verbatim. Its owner writes what it sends to its own
// output, so a lossy codec gives the same bytes on all ranks.
void AllGatherRing(PhaseBuilder* phase) {
  const int n = phase->nranks();
  phase->set_chunks(n);
  const HostOrder ring(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const RingLanes lanes(phase, ring, channel, n - 1);
    const int strand = phase->AddStrand(channel);
    for (int hop = 0; hop < n; ++hop) {
      const Operand input = hop == 0 ? phase->Input() : phase->Result(lanes.in(hop - 1));
      std::vector<Operand> outputs;
      if (hop < n - 1) outputs.push_back(phase->Result(lanes.out(hop)));
      outputs.push_back(phase->Output());
      phase->AddStep(strand, ring.Shifted(-hop), {input}, outputs);
    }
  }
}

}  // namespace inccl
