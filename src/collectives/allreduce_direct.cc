// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// One-shot: every rank sends its input to all others and adds up in rank order. It uses one strand,
// because in place the sum overwrites what has been sent. Side information does not, so that of
// later windows is on its way while that of earlier ones is awaited.
void AllReduceDirectOneShot(PhaseBuilder* phase) {
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int deal = phase->AddStrand(channel);
    const int strand = phase->side() ? phase->AddStrand(channel) : deal;
    std::vector<Operand> inputs;
    for (int q = 0; q < phase->nranks(); ++q) {
      const int lane = phase->AddLane(channel, kResultPlane, q, phase->AllBut(q));
      if (q == phase->rank()) {
        phase->AddStep(deal, 0, {phase->Input()}, {phase->Sum(lane, 1)});
        inputs.push_back(phase->Input());
      } else {
        inputs.push_back(phase->Sum(lane, 1));
      }
    }
    phase->AddStep(strand, 0, inputs, {phase->Output()});
  }
}

// Two-shot: chunk p belongs to rank p. Every rank sends its part of the chunk to the owner. The
// owner adds the parts in rank order and sends the result to all others. Three strands, so a rank
// that waits for a part can still send parts and receive results.
void AllReduceDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int deal = phase->AddStrand(channel);
    const int own = phase->AddStrand(channel);
    const int gather = phase->AddStrand(channel);
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
    const int result = phase->AddLane(channel, kResultPlane, rank, phase->AllBut(rank));
    phase->AddStep(own, rank, parts, {phase->Result(result), phase->Output()});
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int lane = phase->AddLane(channel, kResultPlane, peer, phase->AllBut(peer));
      phase->AddStep(gather, peer, {phase->Result(lane)}, {phase->Output()});
    }
  }
}

}  // namespace inccl
