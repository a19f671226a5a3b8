// SPDX-License-Identifier: Apache-2.0
#include "collectives/rank_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

}  // namespace inccl
