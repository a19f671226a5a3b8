// SPDX-License-Identifier: Apache-2.0
//
// How ranks in groups, such as those of a host, share the work on chunks.
#ifndef INCCL_COLLECTIVES_RANK_GROUPS_H_
#define INCCL_COLLECTIVES_RANK_GROUPS_H_

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "topology/host_map.h"

namespace inccl {

// In every group one member works on a chunk for the whole group, its collector. In one group the
// collector owns the chunk. A chunk's rail decides which member of a group that is, so equally
// large groups exchange a chunk between members of equal index.
class RankGroups {
 public:
  // Groups of `size` neighbouring ranks; the last one may be smaller. Rank c owns chunk c.
  static RankGroups OfNeighbours(int nranks, int size);
  // A group per host. Rank c owns chunk c.
  static RankGroups OfHosts(const HostMap& hosts);
  // A group per host. Every host owns as many chunks as the largest host has ranks, so all hosts
  // send and receive alike. If all are equally large, every rank owns one chunk.
  static RankGroups OfHostsEvenly(const HostMap& hosts);

  int count() const { return groups_.hosts(); }
  int Of(int rank) const { return groups_.HostOf(rank); }
  std::span<const int> Members(int group) const { return groups_.RanksOf(group); }
  std::vector<int> OthersInGroup(int rank) const;

  int chunks() const { return static_cast<int>(chunks_.size()); }
  // A rank owns at most one chunk of each pass. All strands work pass by pass, so no rank waits for
  // a slot that a chunk of a later pass holds.
  int passes() const { return passes_; }
  int Owner(int chunk) const { return At(chunk).owner; }
  int Collector(int group, int chunk) const;
  // The chunks of `group` in a pass that `rank` collects or owns.
  std::vector<int> CollectedBy(int rank, int group, int pass) const;
  // Whether `rank` collects any chunk of another group.
  bool Collects(int rank) const;
  // The consumers of the lanes on which the owner sends a chunk's result: its group and the
  // collectors of the others. Groups of neighbours have one lane for all of them. If groups are
  // hosts, the owner's group has a lane and each collector has one: no transport has multicast from
  // host to host, and an owner's chunks may have collectors in common.
  std::vector<std::vector<int>> Readers(int chunk) const;
  // The one of these sets that contains `reader`.
  std::vector<int> ReadersWith(int reader, int chunk) const;

 private:
  struct Chunk {
    int owner = 0, rail = 0, pass = 0;
  };
  explicit RankGroups(HostMap groups) : groups_(std::move(groups)) {}
  static RankGroups WithAChunkPerRank(HostMap groups);
  void SortChunks();
  const Chunk& At(int chunk) const { return chunks_[static_cast<size_t>(chunk)]; }
  size_t PlaceOf(int group, int pass) const {  // in of_pass_
    return static_cast<size_t>(group) * static_cast<size_t>(passes_) + static_cast<size_t>(pass);
  }

  HostMap groups_;
  std::vector<Chunk> chunks_;
  int passes_ = 1;
  bool one_lane_ = false;                  // for all readers of a chunk
  std::vector<std::vector<int>> of_pass_;  // the chunks of a group in a pass
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_RANK_GROUPS_H_
