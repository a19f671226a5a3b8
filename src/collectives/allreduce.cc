// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/rank_groups.h"
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

void AllReduceInGroups(PhaseBuilder* phase, const RankGroups& groups) {
  phase->set_chunks(groups.chunks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    GroupSteps steps(phase, groups, channel);
    steps.Deal();
    steps.Collect();
    steps.Own(/*folds=*/true, /*sends=*/true);
    steps.Forward();
    steps.Gather();
  }
}

// As AllReduceDirect, but data passes from group to group once: one member adds up its group's
// contributions to a chunk of another group, receives the chunk's result and forwards it.
void AllReduceDirectGroups(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfNeighbours(phase->nranks(), phase->group()));
}

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

namespace {

constexpr int kTrees = 2;

// The nodes of the trees are places of this order, so that subtrees are on few hosts.
int UpLane(PhaseBuilder* phase, const HostOrder& order, int channel, int tree, int child,
           int parent) {
  return phase->AddLane(channel, kTrees * tree + kSumPlane, order.At(child), {order.At(parent)});
}

int DownLane(PhaseBuilder* phase, const HostOrder& order, int channel, int tree, int parent) {
  std::vector<int> children = DoubleTreeNode(phase->nranks(), tree, parent).children;
  for (int& child : children) child = order.At(child);
  return phase->AddLane(channel, kTrees * tree + kResultPlane, order.At(parent),
                        std::move(children));
}

// The parts of the children and this rank's own, by place.
std::vector<Operand> Parts(PhaseBuilder* phase, const HostOrder& order, int channel, int tree,
                           const TreeNode& node) {
  std::vector<Operand> parts;
  bool own = false;
  for (int child : node.children) {
    if (!own && child > order.place()) {
      parts.push_back(phase->Input());
      own = true;
    }
    parts.push_back(phase->Sum(UpLane(phase, order, channel, tree, child, order.place()),
                               DoubleTreeNode(phase->nranks(), tree, child).size));
  }
  if (!own) parts.push_back(phase->Input());
  return parts;
}

}  // namespace

// Half of the data (chunk t) passes up tree t, is complete at its root, and passes down again.
void AllReduceTree(PhaseBuilder* phase) {
  phase->set_chunks(kTrees);
  const HostOrder order(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    for (int tree = 0; tree < kTrees; ++tree) {
      const TreeNode node = DoubleTreeNode(phase->nranks(), tree, order.place());
      std::vector<Operand> down;
      if (!node.children.empty()) {
        down.push_back(phase->Result(DownLane(phase, order, channel, tree, order.place())));
      }
      down.push_back(phase->Output());

      const std::vector<Operand> parts = Parts(phase, order, channel, tree, node);
      const int up_strand = phase->AddStrand(channel);
      if (node.parent < 0) {
        phase->AddStep(up_strand, tree, parts, down);
        continue;
      }
      const int up = UpLane(phase, order, channel, tree, order.place(), node.parent);
      phase->AddStep(up_strand, tree, parts, {phase->Sum(up, node.size)});
      const int from = DownLane(phase, order, channel, tree, node.parent);
      phase->AddStep(phase->AddStrand(channel), tree, {phase->Result(from)}, down);
    }
  }
}

namespace {

// Here ranks are numbered host by host, so neighbours share a host. The ranks that exchange have p
// places; p is the largest power of two that is not above the number of ranks. The first 2 * extra
// ranks form pairs whose odd half stays outside, so neighbouring places stand for neighbouring
// ranks, in order.
struct Places {
  int p;
  int extra;

  explicit Places(int nranks)
      : p(static_cast<int>(std::bit_floor(static_cast<unsigned>(nranks)))), extra(nranks - p) {}
  bool Paired(int rank) const { return rank < 2 * extra; }
  int PlaceOf(int rank) const { return Paired(rank) ? rank / 2 : rank - extra; }
  int RankOf(int place) const { return place < extra ? 2 * place : place + extra; }
  // Contributions of the aligned block of `size` places around `place`.
  int Contributions(int place, int size) const {
    const int first = place / size * size;
    return size + std::clamp(extra - first, 0, size);
  }
};

// A rank outside sends its part to the rank before it, and receives the result from there.
void Outside(PhaseBuilder* phase, const HostOrder& order, int channel) {
  const int rank = phase->rank(), partner = order.At(order.place() - 1);
  const int strand = phase->AddStrand(channel);
  const int to = phase->AddLane(channel, kSumPlane, rank, {partner});
  const int from = phase->AddLane(channel, kResultPlane, partner, {rank});
  phase->AddStep(strand, 0, {phase->Input()}, {phase->Sum(to, 1)});
  phase->AddStep(strand, 0, {phase->Result(from)}, {phase->Output()});
}

// Sends the sum so far to the partner at distance 1, 2, 4, ... and adds the partner's. One step
// combines the sum of a round and the send of the next; the running sum alternates between two
// scratch slots. The lower part in the order of hosts always comes first, so all ranks compute the
// same bits.
void Inside(PhaseBuilder* phase, const HostOrder& order, int channel, const Places& places) {
  const int rank = phase->rank(), place = places.PlaceOf(order.place());
  const int strand = phase->AddStrand(channel);
  std::vector<Operand> inputs = {phase->Input()};
  std::vector<Operand> last = {phase->Output()};
  if (places.Paired(order.place())) {
    const int outside = order.At(order.place() + 1);
    inputs.push_back(phase->Sum(phase->AddLane(channel, kSumPlane, outside, {rank}), 1));
    last.insert(last.begin(),
                phase->Result(phase->AddLane(channel, kResultPlane, rank, {outside})));
  }
  int scratch[2] = {-1, -1};
  int round = 0;
  for (int distance = 1; distance < places.p; distance *= 2, ++round) {
    const int partner = order.At(places.RankOf(place ^ distance));
    const int mine = places.Contributions(place, distance);
    const int theirs = places.Contributions(place ^ distance, distance);
    const int to = phase->AddLane(channel, kSumPlane, rank, {partner});
    const int from = phase->AddLane(channel, kSumPlane, partner, {rank});
    std::vector<Operand> outputs = {phase->Sum(to, mine)};
    Operand running = phase->Input();
    if (inputs.size() > 1) {
      int& slot = scratch[round & 1];
      if (slot < 0) slot = phase->AddScratch();
      running = phase->Scratch(slot, mine);
      outputs.push_back(running);
    }
    phase->AddStep(strand, 0, inputs, outputs);
    inputs = {running, phase->Sum(from, theirs)};
    if ((place & distance) != 0) std::swap(inputs[0], inputs[1]);
  }
  phase->AddStep(strand, 0, inputs, last);
}

}  // namespace

// Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005),
// section 4.4, without the scatter.
void AllReduceRecursiveDoubling(PhaseBuilder* phase) {
  const Places places(phase->nranks());
  const HostOrder order(*phase);
  for (int channel = 0; channel < phase->channels(); ++channel) {
    if (places.Paired(order.place()) && order.place() % 2 == 1) {
      Outside(phase, order, channel);
    } else {
      Inside(phase, order, channel, places);
    }
  }
}

// Two-shot in groups that are hosts. The hosts own equal parts of the window, so each sends and
// receives 2(H-1)/H of it, whatever the numbers of their ranks.
void AllReduceHierarchical(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfHostsEvenly(*phase->hosts()));
}

// The same with chunk c at rank c: for the side information of segments.
void AllReduceSegmentsHierarchical(PhaseBuilder* phase) {
  AllReduceInGroups(phase, RankGroups::OfHosts(*phase->hosts()));
}

}  // namespace inccl
