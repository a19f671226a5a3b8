// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_chain.h"

namespace inccl {
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
