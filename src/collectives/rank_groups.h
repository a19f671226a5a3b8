// SPDX-License-Identifier: Apache-2.0
//
// How ranks in groups, such as those of a host, share the work on chunks.
#ifndef INCCL_COLLECTIVES_RANK_GROUPS_H_
#define INCCL_COLLECTIVES_RANK_GROUPS_H_

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "collectives/schedule_builder.h"
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

// The strands of two-shot algorithms over groups of ranks, where every chunk passes from group to
// group once in each direction.

// The two-shot all-reduce over groups.
void AllReduceInGroups(PhaseBuilder* phase, const RankGroups& groups);

// Adds one strand per call to the phase of one rank, on one channel. Of a reduction: Deal, Collect,
// Own; of a distribution: Own, Forward, Gather.
class GroupSteps {
 public:
  GroupSteps(PhaseBuilder* phase, const RankGroups& groups, int channel);

  // Sends this rank's contributions to the owners and collectors of its group: first for chunks of
  // its own group, then for those of the next group, and so on.
  void Deal();
  // Adds up the contributions of this rank's group to chunks of other groups, and sends the sums to
  // the owners.
  void Collect();
  // For this rank's chunks. `folds`: adds the parts of its own group and the sums of the others, by
  // group and rank; else the input is the result. `sends`: sends the result to its readers.
  void Own(bool folds, bool sends);
  // Receives results of chunks that this rank collects, and forwards them to its group.
  void Forward();
  // Receives results from the owners and collectors of this rank's group.
  void Gather();

 private:
  // The chunks of the group at distance `shift` after this rank's that `peer` collects or owns.
  std::vector<int> ChunksOf(int peer, int shift, int pass) const;
  // Calls visit(peer, chunk, shift) for all chunks that the other members collect or own, in an
  // order that all members share: in a pass and for a group, each member's first chunk before any
  // member's second. This round-robin over members avoids circular waits for slots.
  template <typename Visit>
  void InStep(const Visit& visit) const;
  // The parts of this rank's group, by rank: its own input, and those from lanes of this plane.
  std::vector<Operand> Members(int plane);
  // The lane on which this rank receives the result of `chunk` from its owner.
  Operand FromOwner(int chunk);

  PhaseBuilder* const phase_;
  const RankGroups& groups_;
  LaneSet lanes_;
  const int channel_, rank_, group_;
  std::vector<int> peers_;  // the others of the group, beginning with the next one
};

// The hosts in a row that begins or ends with the root's, for broadcast and reduce over two levels.

// A window has as many chunks as the largest host has ranks. Each chunk has a rail: one rank per
// host, which exchanges the chunk with the ranks of the same rail on the neighbouring hosts. So all
// ranks of the largest host use the network, and every host sends and receives a window at most.
class HostChain {
 public:
  // As the rank of `phase` sees it.
  static HostChain From(const PhaseBuilder& phase) { return {phase, 0}; }
  static HostChain To(const PhaseBuilder& phase) { return {phase, 1}; }

  int chunks() const { return hosts_.LargestHost(); }
  bool first() const { return place_ == 0; }
  bool last() const { return place_ == hosts_.hosts() - 1; }
  // The rank on the rail of `chunk`: on this host, on the one before it and on the one after it.
  int Here(int chunk) const { return On(0, chunk); }
  int Before(int chunk) const { return On(-1, chunk); }
  int After(int chunk) const { return On(1, chunk); }
  std::span<const int> Ranks() const { return hosts_.RanksOf(host_); }  // of this host
  std::vector<int> OthersThan(int rank) const;                          // of this host
  int RanksBefore() const;                                              // on the hosts before

 private:
  HostChain(const PhaseBuilder& phase, int shift);
  // Of the host that many places after this one, modulo the number of hosts.
  std::span<const int> RanksAt(int offset) const;
  int On(int offset, int chunk) const;

  const HostMap& hosts_;
  int host_, place_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_RANK_GROUPS_H_
