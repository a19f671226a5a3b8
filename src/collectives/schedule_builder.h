// SPDX-License-Identifier: Apache-2.0
//
// The interface with which algorithms write schedules. A PhaseBuilder appends one phase to one
// rank's schedule; an algorithm is a function that fills it. In the side phase (LaneClass::kSide)
// the same algorithms run with Form::kSide instead of partial sums, results and outputs.
#ifndef INCCL_COLLECTIVES_SCHEDULE_BUILDER_H_
#define INCCL_COLLECTIVES_SCHEDULE_BUILDER_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "collectives/schedule.h"
#include "topology/host_map.h"

namespace inccl {

// The trees of the tree algorithms, one node at a time.
struct TreeNode {
  int parent = -1;            // -1: the root
  std::vector<int> children;  // ascending, at most two, except with several hosts
  int size = 1;               // ranks in the subtree of this node, itself included
};

// Two trees over the same ranks, depth floor(log2(nranks)), such that a rank that has children in
// one has none in the other: with half of the data through each tree every rank sends and receives
// alike. Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and
// scan (2009). tree: 0 or 1.
TreeNode DoubleTreeNode(int nranks, int tree, int rank);

// One complete binary tree of least depth, floor(log2(nranks)), below `root`.
TreeNode RootedTreeNode(int nranks, int root, int rank);

// Such a tree over the hosts below that of `root`, of their leaders (`root`, else the first rank of
// the host), and such a tree over the ranks of each host below its leader. The leader's children on
// other hosts come first, so a node has up to four; within the two and two they ascend.
TreeNode RootedTreeNode(const HostMap& hosts, int root, int rank);

// Planes distinguish the lanes of one channel that have the same ends.
inline constexpr int kSumPlane = 0;     // parts for one rank, which adds or keeps them
inline constexpr int kResultPlane = 1;  // results on their way to all ranks that need them
// Algorithms over groups: what a member of a rank's own group adds up or forwards for other groups.
inline constexpr int kMemberPlane = 2;
inline constexpr int kForwardPlane = 3;

class PhaseBuilder {
 public:
  // The caller has set schedule->nranks, rank and root, and owns the schedule. `hosts`: nullptr if
  // all ranks are on one host.
  PhaseBuilder(Schedule* schedule, LaneClass lane_class, int channels, const HostMap* hosts);

  int nranks() const { return schedule_->nranks; }
  int rank() const { return schedule_->rank; }
  int root() const { return schedule_->root; }
  int group() const { return schedule_->group; }
  const HostMap* hosts() const { return hosts_; }
  int channels() const { return phase().channels; }
  bool side() const { return phase().lane_class == LaneClass::kSide; }
  int Shifted(int offset) const;                // (rank + offset) mod nranks; offset of any sign
  std::vector<int> AllBut(int producer) const;  // the other ranks, ascending

  void set_chunks(int chunks);
  int AddStrand(int channel);
  // Adds a lane of which this rank is an end; called once per lane. `consumers` in any order.
  int AddLane(int channel, int plane, int producer, std::vector<int> consumers);
  int AddScratch() { return schedule_->scratch_slots++; }

  Operand Input() const { return {Space::kInput, 0, 0, {Form::kInput, 0}}; }
  Operand Output() const { return {Space::kOutput, 0, 0, FormatOf(Form::kOutput, 0)}; }
  Operand Sum(int lane, int contributions) const;
  Operand Result(int lane) const;
  Operand Scratch(int slot, int contributions) const;
  // Appends outputs = fold(inputs) to a strand; all operands get this chunk.
  void AddStep(int strand, int chunk, const std::vector<Operand>& inputs,
               const std::vector<Operand>& outputs);

 private:
  Phase& phase() { return schedule_->phases[index_]; }
  const Phase& phase() const { return schedule_->phases[index_]; }
  Format FormatOf(Form form, int contributions) const;
  // The number of side phases before this one; 0 for data.
  int SideNumber() const {
    return phase().lane_class == LaneClass::kSide ? static_cast<int>(index_) : 0;
  }

  Schedule* schedule_;
  const HostMap* hosts_;
  size_t index_;
};

// The ranks in an order that visits them host by host, each host once. On one host it is the order
// of ranks.
class HostOrder {
 public:
  explicit HostOrder(const PhaseBuilder& phase);
  // An order that begins with `root`.
  static HostOrder From(const PhaseBuilder& phase, int root);
  // An order that ends with `root`.
  static HostOrder To(const PhaseBuilder& phase, int root);

  int place() const { return place_; }  // of this rank
  int At(int place) const { return ranks_[static_cast<size_t>(place)]; }
  int Shifted(int offset) const;  // the rank at (place() + offset) mod nranks; offset of any sign

 private:
  // The blocks of `first_host` and of the hosts after it; the block of `first_host` comes last if
  // `last`. This block is rotated by `rotation`.
  HostOrder(const PhaseBuilder& phase, int first_host, bool last, int rotation);

  std::vector<int> ranks_;  // by place
  int place_ = 0;
};

// The lanes of a ring: two to the next rank and two from the previous one, which alternate from hop
// to hop. With one lane, every rank would wait for a free slot of a lane that is full because the
// next rank waits, and no rank in a ring of full lanes could continue.
class RingLanes {
 public:
  RingLanes(PhaseBuilder* phase, const HostOrder& ring, int channel, int hops);
  int in(int hop) const { return in_[hop & 1]; }
  int out(int hop) const { return out_[hop & 1]; }

 private:
  int in_[2] = {0, 0};
  int out_[2] = {0, 0};
};

// The lanes of one channel that have been added so far.
class LaneSet {
 public:
  LaneSet(PhaseBuilder* phase, int channel) : phase_(phase), channel_(channel) {}
  // Returns the lane; adds it at the first call. `consumers` in any order.
  int Of(int plane, int producer, std::vector<int> consumers);

 private:
  PhaseBuilder* const phase_;
  const int channel_;
  // By plane, producer and lowest consumer, which two lanes never have in common.
  std::unordered_map<uint64_t, int> lanes_;
};

// The node of a rank in the tree below the root of the schedule.
TreeNode RootedTreeNode(const PhaseBuilder& phase, int rank);

// The algorithms, for more than one rank; each has its own file.
void AllReduceRing(PhaseBuilder* phase);
void AllReduceTree(PhaseBuilder* phase);
void AllReduceRecursiveDoubling(PhaseBuilder* phase);
void AllReduceDirectOneShot(PhaseBuilder* phase);
void AllReduceDirect(PhaseBuilder* phase);
void AllReduceDirectGroups(PhaseBuilder* phase);  // groups of phase->group() ranks
// The hierarchical ones: for several groups (HostMap::Groups), of which one has several ranks.
void AllReduceHierarchical(PhaseBuilder* phase);
void AllReduceSegmentsHierarchical(PhaseBuilder* phase);
void ReduceScatterHierarchical(PhaseBuilder* phase);
void AllGatherHierarchical(PhaseBuilder* phase);
void BroadcastHierarchical(PhaseBuilder* phase);
void ReduceHierarchical(PhaseBuilder* phase);
void ReduceScatterRing(PhaseBuilder* phase);
void ReduceScatterDirect(PhaseBuilder* phase);
void AllGatherRing(PhaseBuilder* phase);
void AllGatherDirect(PhaseBuilder* phase);
void BroadcastRing(PhaseBuilder* phase);
void BroadcastTree(PhaseBuilder* phase);
void BroadcastDirect(PhaseBuilder* phase);
void ReduceRing(PhaseBuilder* phase);
void ReduceTree(PhaseBuilder* phase);
void ReduceDirect(PhaseBuilder* phase);
void AllToAllDirect(PhaseBuilder* phase);
void GatherDirect(PhaseBuilder* phase);
void ScatterDirect(PhaseBuilder* phase);

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_SCHEDULE_BUILDER_H_
