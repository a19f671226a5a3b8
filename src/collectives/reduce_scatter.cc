// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"
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

// The first half of the hierarchical all-reduce: every host sends one sum per segment of a rank on
// another host.
void ReduceScatterHierarchical(PhaseBuilder* phase) {
  const RankGroups groups = RankGroups::OfHosts(*phase->hosts());
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Deal();
    steps.Collect();
    steps.Own(/*folds=*/true, /*sends=*/false);
  }
}

}  // namespace inccl
