// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"
#include "collectives/schedule_builder.h"

namespace inccl {

// The root sends to all others at once.
void BroadcastDirect(PhaseBuilder* phase) {
  const int root = phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const Operand lane =
        phase->Result(phase->AddLane(channel, kResultPlane, root, phase->AllBut(root)));
    const int strand = phase->AddStrand(channel);
    if (phase->rank() == root) {
      phase->AddStep(strand, 0, {phase->Input()}, {lane, phase->Output()});
    } else {
      phase->AddStep(strand, 0, {lane}, {phase->Output()});
    }
  }
}

// A chain from the root through all others, through which slices are pipelined.
void BroadcastRing(PhaseBuilder* phase) {
  const bool first = phase->rank() == phase->root();
  const HostOrder chain = HostOrder::From(*phase, phase->root());
  const bool last = chain.Shifted(1) == phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const Operand input = first ? phase->Input()
                                : phase->Result(phase->AddLane(channel, kResultPlane,
                                                               chain.Shifted(-1), {phase->rank()}));
    std::vector<Operand> outputs;
    if (!last) {
      outputs.push_back(
          phase->Result(phase->AddLane(channel, kResultPlane, phase->rank(), {chain.Shifted(1)})));
    }
    outputs.push_back(phase->Output());
    phase->AddStep(phase->AddStrand(channel), 0, {input}, outputs);
  }
}

// Down one binary tree; a rank forwards what it receives to its children, verbatim.
void BroadcastTree(PhaseBuilder* phase) {
  const TreeNode node = RootedTreeNode(*phase, phase->rank());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    Operand input = phase->Input();
    if (node.parent >= 0) {
      input = phase->Result(phase->AddLane(channel, kResultPlane, node.parent,
                                           RootedTreeNode(*phase, node.parent).children));
    }
    std::vector<Operand> outputs;
    if (!node.children.empty()) {
      outputs.push_back(
          phase->Result(phase->AddLane(channel, kResultPlane, phase->rank(), node.children)));
    }
    outputs.push_back(phase->Output());
    phase->AddStep(phase->AddStrand(channel), 0, {input}, outputs);
  }
}

namespace {

// Sends to the other ranks of this host, if this rank is the one that does, and to the next host,
// if this rank is on the chunk's rail.
std::vector<Operand> Onwards(PhaseBuilder* phase, const HostChain& chain, LaneSet* lanes,
                             bool spreads, int chunk) {
  const int rank = phase->rank();
  std::vector<Operand> outputs;
  const std::vector<int> others = chain.OthersThan(rank);
  if (spreads && !others.empty()) {
    outputs.push_back(phase->Result(lanes->Of(kResultPlane, rank, others)));
  }
  if (chain.Here(chunk) == rank && !chain.last()) {
    outputs.push_back(phase->Result(lanes->Of(kResultPlane, rank, {chain.After(chunk)})));
  }
  outputs.push_back(phase->Output());
  return outputs;
}

// The root sends everything to its host; from there every chunk goes to the next host on its rail.
void OnFirstHost(PhaseBuilder* phase, const HostChain& chain, int channel) {
  LaneSet lanes(phase, channel);
  const int root = phase->root();
  const bool is_root = phase->rank() == root;
  const int strand = phase->AddStrand(channel);
  for (int chunk = 0; chunk < chain.chunks(); ++chunk) {
    const Operand input = is_root
                              ? phase->Input()
                              : phase->Result(lanes.Of(kResultPlane, root, chain.OthersThan(root)));
    phase->AddStep(strand, chunk, {input}, Onwards(phase, chain, &lanes, is_root, chunk));
  }
}

// A rank forwards the chunks of its rails, and receives the others from ranks of its host.
void OnLaterHost(PhaseBuilder* phase, const HostChain& chain, int channel) {
  LaneSet lanes(phase, channel);
  const int rank = phase->rank();
  for (const bool forwards : {true, false}) {
    int strand = -1;
    for (int chunk = 0; chunk < chain.chunks(); ++chunk) {
      const int here = chain.Here(chunk);
      if ((here == rank) != forwards) continue;
      if (strand < 0) strand = phase->AddStrand(channel);
      if (forwards) {
        const int lane = lanes.Of(kResultPlane, chain.Before(chunk), {rank});
        phase->AddStep(strand, chunk, {phase->Result(lane)},
                       Onwards(phase, chain, &lanes, /*spreads=*/true, chunk));
      } else {
        const int lane = lanes.Of(kResultPlane, here, chain.OthersThan(here));
        phase->AddStep(strand, chunk, {phase->Result(lane)}, {phase->Output()});
      }
    }
  }
}

}  // namespace

// A chain of hosts from the root's, with a rail per chunk. A rank that receives a chunk from
// another host sends it to the other ranks of its host and to the next host.
void BroadcastHierarchical(PhaseBuilder* phase) {
  const HostChain chain = HostChain::From(*phase);
  phase->set_chunks(chain.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    (chain.first() ? OnFirstHost : OnLaterHost)(phase, chain, channel);
  }
}

}  // namespace inccl
