// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"
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

// The second half of the hierarchical all-reduce: every segment goes to each other host once, to
// the rank that forwards it there.
void AllGatherHierarchical(PhaseBuilder* phase) {
  const RankGroups groups = RankGroups::OfHosts(*phase->hosts());
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Own(/*folds=*/false, /*sends=*/true);
    steps.Forward();
    steps.Gather();
  }
}

}  // namespace inccl
