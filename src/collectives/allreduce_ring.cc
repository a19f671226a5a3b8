// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// A reduce-scatter pass and an all-gather pass around the ring, in one strand. Chunk c starts at
// the rank after c, receives one contribution per hop, is complete at rank c, and passes the ring
// once more. Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations
// (2009).
void AllReduceRing(PhaseBuilder* phase) {
  const int n = phase->nranks();
  const int hops = 2 * (n - 1);
  phase->set_chunks(n);
  const HostOrder ring(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const RingLanes lanes(phase, ring, channel, hops);
    const int strand = phase->AddStrand(channel);
    for (int hop = 0; hop <= hops; ++hop) {
      std::vector<Operand> inputs, outputs;
      if (hop >= n) {
        inputs.push_back(phase->Result(lanes.in(hop - 1)));
      } else {
        if (hop > 0) inputs.push_back(phase->Sum(lanes.in(hop - 1), hop));
        inputs.push_back(phase->Input());
      }
      if (hop < n - 1) {
        outputs.push_back(phase->Sum(lanes.out(hop), hop + 1));
      } else {
        if (hop < hops) outputs.push_back(phase->Result(lanes.out(hop)));
        outputs.push_back(phase->Output());
      }
      phase->AddStep(strand, ring.Shifted(-1 - hop), inputs, outputs);
    }
  }
}

}  // namespace inccl
