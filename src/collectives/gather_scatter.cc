// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

namespace inccl {

// Every rank sends its segment straight to the root.
void GatherDirect(PhaseBuilder* phase) {
  const int n = phase->nranks(), rank = phase->rank(), root = phase->root();
  phase->set_chunks(n);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int strand = phase->AddStrand(channel);
    if (rank != root) {
      const int lane = phase->AddLane(channel, kSumPlane, rank, {root});
      phase->AddStep(strand, rank, {phase->Input()}, {phase->Result(lane)});
      continue;
    }
    // The root copies its own segment first, while the others are still on their way.
    phase->AddStep(strand, rank, {phase->Input()}, {phase->Output()});
    for (int i = 1; i < n; ++i) {
      const int peer = phase->Shifted(i);
      const int lane = phase->AddLane(channel, kSumPlane, peer, {rank});
      phase->AddStep(strand, peer, {phase->Result(lane)}, {phase->Output()});
    }
  }
}

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
