// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"
#include "collectives/schedule_builder.h"

namespace inccl {

// All ranks send to the root, which adds in rank order.
void ReduceDirect(PhaseBuilder* phase) {
  const int rank = phase->rank(), root = phase->root();
  for (int channel = 0; channel < phase->channels(); ++channel) {
    const int strand = phase->AddStrand(channel);
    if (rank != root) {
      const int lane = phase->AddLane(channel, kSumPlane, rank, {root});
      phase->AddStep(strand, 0, {phase->Input()}, {phase->Sum(lane, 1)});
      continue;
    }
    std::vector<Operand> parts;
    for (int q = 0; q < phase->nranks(); ++q) {
      parts.push_back(q == root ? phase->Input()
                                : phase->Sum(phase->AddLane(channel, kSumPlane, q, {root}), 1));
    }
    phase->AddStep(strand, 0, parts, {phase->Output()});
  }
}

// A chain through all others to the root; on one host it begins with the rank after the root. With
// root n-1 the sum is then folded in rank order.
void ReduceRing(PhaseBuilder* phase) {
  const int n = phase->nranks();
  const HostOrder chain = HostOrder::To(*phase, phase->root());
  const int place = chain.place();  // 0 .. n-1 (the root)
  for (int channel = 0; channel < phase->channels(); ++channel) {
    std::vector<Operand> inputs;
    if (place > 0) {
      const int from = phase->AddLane(channel, kSumPlane, chain.Shifted(-1), {phase->rank()});
      inputs.push_back(phase->Sum(from, place));
    }
    inputs.push_back(phase->Input());
    Operand output = phase->Output();
    if (place < n - 1) {
      const int to = phase->AddLane(channel, kSumPlane, phase->rank(), {chain.Shifted(1)});
      output = phase->Sum(to, place + 1);
    }
    phase->AddStep(phase->AddStrand(channel), 0, inputs, {output});
  }
}

// Up one binary tree: a rank adds its own part and those of its children, and passes the sum on.
void ReduceTree(PhaseBuilder* phase) {
  const int rank = phase->rank();
  const TreeNode node = RootedTreeNode(*phase, rank);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    std::vector<Operand> parts = {phase->Input()};
    for (int child : node.children) {
      parts.push_back(phase->Sum(phase->AddLane(channel, kSumPlane, child, {rank}),
                                 RootedTreeNode(*phase, child).size));
    }
    const int strand = phase->AddStrand(channel);
    if (node.parent < 0) {
      phase->AddStep(strand, 0, parts, {phase->Output()});
    } else {
      const int up = phase->AddLane(channel, kSumPlane, rank, {node.parent});
      phase->AddStep(strand, 0, parts, {phase->Sum(up, node.size)});
    }
  }
}

namespace {

// Sends this rank's contributions to the other rails of its host.
void Deal(PhaseBuilder* phase, const HostChain& chain, LaneSet* lanes, int channel) {
  const int rank = phase->rank();
  if (chain.Ranks().size() == 1) return;
  const int strand = phase->AddStrand(channel);
  for (int chunk = 0; chunk < chain.chunks(); ++chunk) {
    if (chain.Here(chunk) == rank) continue;
    const int lane = lanes->Of(kMemberPlane, rank, {chain.Here(chunk)});
    phase->AddStep(strand, chunk, {phase->Input()}, {phase->Sum(lane, 1)});
  }
}

// Adds the contributions of this host to the sum of the hosts before it, for the chunks of this
// rank's rails.
void Add(PhaseBuilder* phase, const HostChain& chain, LaneSet* lanes, int channel) {
  const int rank = phase->rank(), root = phase->root(), before = chain.RanksBefore();
  const int after = before + static_cast<int>(chain.Ranks().size());
  int strand = -1;
  for (int chunk = 0; chunk < chain.chunks(); ++chunk) {
    if (chain.Here(chunk) != rank) continue;
    if (strand < 0) strand = phase->AddStrand(channel);
    std::vector<Operand> parts;
    if (!chain.first()) {
      parts.push_back(phase->Sum(lanes->Of(kSumPlane, chain.Before(chunk), {rank}), before));
    }
    for (const int member : chain.Ranks()) {
      parts.push_back(member == rank ? phase->Input()
                                     : phase->Sum(lanes->Of(kMemberPlane, member, {rank}), 1));
    }
    const int to = chain.last() ? root : chain.After(chunk);
    phase->AddStep(
        strand, chunk, parts,
        {to == rank ? phase->Output() : phase->Sum(lanes->Of(kSumPlane, rank, {to}), after)});
  }
}

// The root receives the sums of the other rails of its host.
void Take(PhaseBuilder* phase, const HostChain& chain, LaneSet* lanes, int channel) {
  const int root = phase->root();
  if (phase->rank() != root || chain.Ranks().size() == 1) return;
  const int strand = phase->AddStrand(channel);
  for (int chunk = 0; chunk < chain.chunks(); ++chunk) {
    if (chain.Here(chunk) == root) continue;
    const int lane = lanes->Of(kSumPlane, chain.Here(chunk), {root});
    phase->AddStep(strand, chunk, {phase->Sum(lane, phase->nranks())}, {phase->Output()});
  }
}

}  // namespace

// A chain of hosts to the root's, with a rail per chunk: the rank on it adds its host's
// contributions to the sum that passes.
void ReduceHierarchical(PhaseBuilder* phase) {
  const HostChain chain = HostChain::To(*phase);
  phase->set_chunks(chain.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    LaneSet lanes(phase, channel);
    Deal(phase, chain, &lanes, channel);
    Add(phase, chain, &lanes, channel);
    Take(phase, chain, &lanes, channel);
  }
}

}  // namespace inccl
