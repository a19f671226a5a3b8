// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace inccl {

RankGroups RankGroups::WithAChunkPerRank(HostMap groups) {
  RankGroups made(std::move(groups));
  made.chunks_.resize(static_cast<size_t>(made.groups_.nranks()));
  int rail = 0;
  for (int group = 0; group < made.count(); ++group) {
    for (const int rank : made.Members(group)) {
      made.chunks_[static_cast<size_t>(rank)] = {.owner = rank, .rail = rail++};
    }
  }
  return made;
}

RankGroups RankGroups::OfNeighbours(int nranks, int size) {
  std::vector<uint64_t> identities;
  for (int rank = 0; rank < nranks; ++rank) {
    identities.push_back(static_cast<uint64_t>(rank / size));
  }
  RankGroups made = WithAChunkPerRank(HostMap(identities));
  for (Chunk& chunk : made.chunks_) chunk.rail = chunk.owner % size;
  made.one_lane_ = true;
  made.SortChunks();
  return made;
}

RankGroups RankGroups::OfHosts(const HostMap& hosts) {
  RankGroups made = WithAChunkPerRank(hosts);
  made.SortChunks();
  return made;
}

RankGroups RankGroups::OfHostsEvenly(const HostMap& hosts) {
  RankGroups made(hosts);
  const int share = hosts.LargestHost();
  for (int host = 0; host < hosts.hosts(); ++host) {
    const std::span<const int> ranks = hosts.RanksOf(host);
    for (int i = 0; i < share; ++i) {
      const int rail = host * share + i, size = static_cast<int>(ranks.size());
      made.chunks_.push_back(
          {.owner = ranks[static_cast<size_t>(rail % size)], .rail = rail, .pass = i / size});
    }
  }
  made.SortChunks();
  return made;
}

void RankGroups::SortChunks() {
  for (const Chunk& chunk : chunks_) passes_ = std::max(passes_, chunk.pass + 1);
  of_pass_.resize(PlaceOf(count(), 0));
  for (int c = 0; c < chunks(); ++c) {
    of_pass_[PlaceOf(Of(Owner(c)), At(c).pass)].push_back(c);
  }
}

std::vector<int> RankGroups::OthersInGroup(int rank) const {
  std::vector<int> others;
  for (const int member : Members(Of(rank))) {
    if (member != rank) others.push_back(member);
  }
  return others;
}

int RankGroups::Collector(int group, int chunk) const {
  if (group == Of(Owner(chunk))) return Owner(chunk);
  const std::span<const int> members = Members(group);
  return members[static_cast<size_t>(At(chunk).rail) % members.size()];
}

std::vector<int> RankGroups::CollectedBy(int rank, int group, int pass) const {
  std::vector<int> collected;
  for (const int chunk : of_pass_[PlaceOf(group, pass)]) {
    if (Collector(Of(rank), chunk) == rank) collected.push_back(chunk);
  }
  return collected;
}

bool RankGroups::Collects(int rank) const {
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    if (Of(Owner(chunk)) != Of(rank) && Collector(Of(rank), chunk) == rank) return true;
  }
  return false;
}

std::vector<std::vector<int>> RankGroups::Readers(int chunk) const {
  const int owner = Owner(chunk);
  std::vector<std::vector<int>> readers = {OthersInGroup(owner)};
  for (int group = 0; group < count(); ++group) {
    if (group == Of(owner)) continue;
    if (one_lane_) {
      readers[0].push_back(Collector(group, chunk));
    } else {
      readers.push_back({Collector(group, chunk)});
    }
  }
  if (readers[0].empty()) readers.erase(readers.begin());
  return readers;
}

std::vector<int> RankGroups::ReadersWith(int reader, int chunk) const {
  if (one_lane_) return Readers(chunk).front();
  const int owner = Owner(chunk);
  return Of(reader) == Of(owner) ? OthersInGroup(owner) : std::vector<int>{reader};
}

GroupSteps::GroupSteps(PhaseBuilder* phase, const RankGroups& groups, int channel)
    : phase_(phase),
      groups_(groups),
      lanes_(phase, channel),
      channel_(channel),
      rank_(phase->rank()),
      group_(groups.Of(phase->rank())),
      peers_(groups.OthersInGroup(rank_)) {
  std::rotate(peers_.begin(), std::upper_bound(peers_.begin(), peers_.end(), rank_), peers_.end());
}

std::vector<int> GroupSteps::ChunksOf(int peer, int shift, int pass) const {
  return groups_.CollectedBy(peer, (group_ + shift) % groups_.count(), pass);
}

template <typename Visit>
void GroupSteps::InStep(const Visit& visit) const {
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 0; shift < groups_.count(); ++shift) {
      std::vector<std::pair<int, std::vector<int>>> chunks;
      for (const int peer : peers_) chunks.emplace_back(peer, ChunksOf(peer, shift, pass));
      for (size_t round = 0, visited = 1; visited != 0; ++round) {
        visited = 0;
        for (const auto& [peer, collected] : chunks) {
          if (round >= collected.size()) continue;
          visit(peer, collected[round], shift);
          ++visited;
        }
      }
    }
  }
}

std::vector<Operand> GroupSteps::Members(int plane) {
  std::vector<Operand> parts;
  for (const int member : groups_.Members(group_)) {
    parts.push_back(member == rank_ ? phase_->Input()
                                    : phase_->Sum(lanes_.Of(plane, member, {rank_}), 1));
  }
  return parts;
}

void GroupSteps::Deal() {
  if (peers_.empty()) return;
  const int strand = phase_->AddStrand(channel_);
  InStep([&](int peer, int chunk, int shift) {
    const int plane = shift == 0 ? kSumPlane : kMemberPlane;
    const int lane = lanes_.Of(plane, rank_, {peer});
    phase_->AddStep(strand, chunk, {phase_->Input()}, {phase_->Sum(lane, 1)});
  });
}

void GroupSteps::Collect() {
  if (!groups_.Collects(rank_)) return;
  const int strand = phase_->AddStrand(channel_);
  const std::vector<Operand> parts = Members(kMemberPlane);
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 1; shift < groups_.count(); ++shift) {
      for (const int chunk : ChunksOf(rank_, shift, pass)) {
        const int lane = lanes_.Of(kSumPlane, rank_, {groups_.Owner(chunk)});
        phase_->AddStep(strand, chunk, parts, {phase_->Sum(lane, static_cast<int>(parts.size()))});
      }
    }
  }
}

void GroupSteps::Own(bool folds, bool sends) {
  const int strand = phase_->AddStrand(channel_);
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (const int chunk : ChunksOf(rank_, 0, pass)) {
      std::vector<Operand> inputs, outputs;
      for (int group = 0; folds && group < groups_.count(); ++group) {
        if (group == group_) {
          const std::vector<Operand> members = Members(kSumPlane);
          inputs.insert(inputs.end(), members.begin(), members.end());
        } else {
          const int lane = lanes_.Of(kSumPlane, groups_.Collector(group, chunk), {rank_});
          inputs.push_back(phase_->Sum(lane, static_cast<int>(groups_.Members(group).size())));
        }
      }
      if (!folds) inputs.push_back(phase_->Input());
      if (sends) {
        for (std::vector<int>& readers : groups_.Readers(chunk)) {
          outputs.push_back(phase_->Result(lanes_.Of(kResultPlane, rank_, std::move(readers))));
        }
      }
      outputs.push_back(phase_->Output());
      phase_->AddStep(strand, chunk, inputs, outputs);
    }
  }
}

Operand GroupSteps::FromOwner(int chunk) {
  return phase_->Result(
      lanes_.Of(kResultPlane, groups_.Owner(chunk), groups_.ReadersWith(rank_, chunk)));
}

void GroupSteps::Forward() {
  if (!groups_.Collects(rank_)) return;
  const int strand = phase_->AddStrand(channel_);
  std::vector<Operand> outputs;
  if (!peers_.empty()) {
    outputs.push_back(phase_->Result(lanes_.Of(kForwardPlane, rank_, peers_)));
  }
  outputs.push_back(phase_->Output());
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 1; shift < groups_.count(); ++shift) {
      for (const int chunk : ChunksOf(rank_, shift, pass)) {
        phase_->AddStep(strand, chunk, {FromOwner(chunk)}, outputs);
      }
    }
  }
}

void GroupSteps::Gather() {
  if (peers_.empty()) return;
  const int strand = phase_->AddStrand(channel_);
  InStep([&](int peer, int chunk, int shift) {
    const Operand input =
        shift == 0 ? FromOwner(chunk)
                   : phase_->Result(lanes_.Of(kForwardPlane, peer, groups_.OthersInGroup(peer)));
    phase_->AddStep(strand, chunk, {input}, {phase_->Output()});
  });
}

HostChain::HostChain(const PhaseBuilder& phase, int shift)
    : hosts_(*phase.hosts()), host_(hosts_.HostOf(phase.rank())) {
  const int n = hosts_.hosts(), begin = hosts_.PlaceOf(hosts_.HostOf(phase.root())) + shift;
  place_ = (hosts_.PlaceOf(host_) - begin + n) % n;
}

std::vector<int> HostChain::OthersThan(int rank) const {
  std::vector<int> others;
  for (const int member : Ranks()) {
    if (member != rank) others.push_back(member);
  }
  return others;
}

int HostChain::RanksBefore() const {
  int ranks = 0;
  for (int back = 1; back <= place_; ++back) ranks += static_cast<int>(RanksAt(-back).size());
  return ranks;
}

std::span<const int> HostChain::RanksAt(int offset) const {
  const int n = hosts_.hosts();
  return hosts_.RanksOf(hosts_.HostAt((hosts_.PlaceOf(host_) + offset + n) % n));
}

int HostChain::On(int offset, int chunk) const {
  const std::span<const int> ranks = RanksAt(offset);
  return ranks[static_cast<size_t>(chunk) % ranks.size()];
}

}  // namespace inccl
