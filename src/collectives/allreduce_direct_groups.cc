// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

// For chunks that belong to another group: contributions, and results on their last hop.
constexpr int kMemberPlane = 2, kForwardPlane = 3;

// Groups of `size` neighbouring ranks; the last one may be smaller.
class RankGroups {
 public:
  explicit RankGroups(PhaseBuilder* phase) : n_(phase->nranks()), size_(phase->group()) {}

  int count() const { return (n_ + size_ - 1) / size_; }
  int Of(int rank) const { return rank / size_; }
  int First(int group) const { return group * size_; }
  int End(int group) const { return std::min(n_, First(group) + size_); }
  int Members(int group) const { return End(group) - First(group); }
  // The member of `group` that adds up `chunk`: its owner in the owner's group, else the member
  // with the owner's index.
  int Collector(int group, int chunk) const {
    return First(group) + chunk % size_ % Members(group);
  }
  std::vector<int> OthersInGroup(int rank) const {
    std::vector<int> others;
    for (int q = First(Of(rank)); q < End(Of(rank)); ++q) {
      if (q != rank) others.push_back(q);
    }
    return others;
  }
  // The ranks that receive results from an owner: its group, and one member of each other group.
  std::vector<int> ReadersOf(int owner) const {
    std::vector<int> readers = OthersInGroup(owner);
    for (int g = 0; g < count(); ++g) {
      if (g != Of(owner)) readers.push_back(Collector(g, owner));
    }
    return readers;
  }
  // Whether `rank` adds up any chunk of another group. With groups of unequal size some members do
  // not.
  bool Collects(int rank) const {
    for (int group = 0; group < count(); ++group) {
      if (group != Of(rank) && !CollectedBy(rank, group).empty()) return true;
    }
    return false;
  }
  // The chunks of group `from` that `rank` adds up for its own group.
  std::vector<int> CollectedBy(int rank, int from) const {
    std::vector<int> chunks;
    for (int chunk = First(from); chunk < End(from); ++chunk) {
      if (Collector(Of(rank), chunk) == rank) chunks.push_back(chunk);
    }
    return chunks;
  }

 private:
  int n_, size_;
};

// The parts of this rank's group, by rank: its own input, and those from lanes of this plane.
std::vector<Operand> Members(PhaseBuilder* phase, const RankGroups& groups, int channel,
                             int plane) {
  const int group = groups.Of(phase->rank());
  std::vector<Operand> parts;
  for (int q = groups.First(group); q < groups.End(group); ++q) {
    parts.push_back(q == phase->rank()
                        ? phase->Input()
                        : phase->Sum(phase->AddLane(channel, plane, q, {phase->rank()}), 1));
  }
  return parts;
}

// Calls visit(lane, chunk) for the chunks of other groups that other members add up, in an order
// that all members share: each member's first chunk before any member's second. This round-robin
// over members avoids circular waits for slots.
template <typename Visit>
void InStep(const RankGroups& groups, int group, const std::vector<std::pair<int, int>>& lanes,
            const Visit& visit) {
  for (int i = 1; i < groups.count(); ++i) {
    const int other = (group + i) % groups.count();
    for (size_t round = 0, visited = 1; visited != 0; ++round) {
      visited = 0;
      for (const auto& [peer, lane] : lanes) {
        const std::vector<int> chunks = groups.CollectedBy(peer, other);
        if (round >= chunks.size()) continue;
        visit(lane, chunks[round]);
        ++visited;
      }
    }
  }
}

// Sends this rank's contributions: first to owners in its group, then to the members that collect
// for the next group, and so on.
void Deal(PhaseBuilder* phase, const RankGroups& groups, int channel) {
  const int rank = phase->rank(), group = groups.Of(rank), members = groups.Members(group);
  if (members == 1) return;
  const int strand = phase->AddStrand(channel);
  std::vector<std::pair<int, int>> lanes;  // to each other member, for other groups
  for (int i = 1; i < members; ++i) {
    const int peer = groups.First(group) + (rank - groups.First(group) + i) % members;
    const int lane = phase->AddLane(channel, kSumPlane, rank, {peer});
    phase->AddStep(strand, peer, {phase->Input()}, {phase->Sum(lane, 1)});
    if (!groups.Collects(peer)) continue;
    lanes.emplace_back(peer, phase->AddLane(channel, kMemberPlane, rank, {peer}));
  }
  InStep(groups, group, lanes, [&](int lane, int chunk) {
    phase->AddStep(strand, chunk, {phase->Input()}, {phase->Sum(lane, 1)});
  });
}

// Adds up the sums of this rank's group for owners in other groups.
void Collect(PhaseBuilder* phase, const RankGroups& groups, int channel) {
  const int rank = phase->rank(), group = groups.Of(rank);
  if (!groups.Collects(rank)) return;
  const int strand = phase->AddStrand(channel);
  const std::vector<Operand> parts = Members(phase, groups, channel, kMemberPlane);
  for (int i = 1; i < groups.count(); ++i) {
    const int other = (group + i) % groups.count();
    for (const int chunk : groups.CollectedBy(rank, other)) {
      const int lane = phase->AddLane(channel, kSumPlane, rank, {chunk});
      phase->AddStep(strand, chunk, parts, {phase->Sum(lane, groups.Members(group))});
    }
  }
}

// The owner adds the parts of its own group and the sums of the others, by rank.
void Own(PhaseBuilder* phase, const RankGroups& groups, int channel) {
  const int rank = phase->rank();
  const int strand = phase->AddStrand(channel);
  std::vector<Operand> parts;
  for (int g = 0; g < groups.count(); ++g) {
    if (g == groups.Of(rank)) {
      const std::vector<Operand> members = Members(phase, groups, channel, kSumPlane);
      parts.insert(parts.end(), members.begin(), members.end());
    } else {
      const int lane = phase->AddLane(channel, kSumPlane, groups.Collector(g, rank), {rank});
      parts.push_back(phase->Sum(lane, groups.Members(g)));
    }
  }
  const int result = phase->AddLane(channel, kResultPlane, rank, groups.ReadersOf(rank));
  phase->AddStep(strand, rank, parts, {phase->Result(result), phase->Output()});
}

Operand FromOwner(PhaseBuilder* phase, const RankGroups& groups, int channel, int owner) {
  return phase->Result(phase->AddLane(channel, kResultPlane, owner, groups.ReadersOf(owner)));
}

// Receives results of chunks that this rank has added up for other groups, and forwards them to its
// own group.
void Forward(PhaseBuilder* phase, const RankGroups& groups, int channel) {
  const int rank = phase->rank(), group = groups.Of(rank);
  if (!groups.Collects(rank)) return;
  const int strand = phase->AddStrand(channel);
  std::vector<Operand> outputs = {phase->Output()};
  const std::vector<int> others = groups.OthersInGroup(rank);
  if (!others.empty()) {
    const int lane = phase->AddLane(channel, kForwardPlane, rank, others);
    outputs.insert(outputs.begin(), phase->Result(lane));
  }
  for (int i = 1; i < groups.count(); ++i) {
    for (const int chunk : groups.CollectedBy(rank, (group + i) % groups.count())) {
      phase->AddStep(strand, chunk, {FromOwner(phase, groups, channel, chunk)}, outputs);
    }
  }
}

// Receives results of owners in this group, then those that its other members forward.
void Gather(PhaseBuilder* phase, const RankGroups& groups, int channel) {
  const int rank = phase->rank(), group = groups.Of(rank), members = groups.Members(group);
  if (members == 1) return;
  const int strand = phase->AddStrand(channel);
  std::vector<std::pair<int, int>> lanes;  // from each member that forwards
  for (int i = 1; i < members; ++i) {
    const int peer = groups.First(group) + (rank - groups.First(group) + i) % members;
    phase->AddStep(strand, peer, {FromOwner(phase, groups, channel, peer)}, {phase->Output()});
    if (!groups.Collects(peer)) continue;
    lanes.emplace_back(peer,
                       phase->AddLane(channel, kForwardPlane, peer, groups.OthersInGroup(peer)));
  }
  InStep(groups, group, lanes, [&](int lane, int chunk) {
    phase->AddStep(strand, chunk, {phase->Result(lane)}, {phase->Output()});
  });
}

}  // namespace

// As AllReduceDirect, but data passes from group to group once: one member adds up its group's
// contributions to a chunk of another group, receives the chunk's result and forwards it.
void AllReduceDirectGroups(PhaseBuilder* phase) {
  const RankGroups groups(phase);
  phase->set_chunks(phase->nranks());
  for (int channel = 0; channel < phase->channels(); ++channel) {
    Deal(phase, groups, channel);
    Collect(phase, groups, channel);
    Own(phase, groups, channel);
    Forward(phase, groups, channel);
    Gather(phase, groups, channel);
  }
}

}  // namespace inccl
