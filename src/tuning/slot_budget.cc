// SPDX-License-Identifier: Apache-2.0
#include "tuning/slot_budget.h"

#include <algorithm>
#include <bit>

#include "collectives/schedule.h"
#include "transport/mapped/arena.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

// Counted with each slot, although not every transport has it in front of the slot.
constexpr uint32_t kHeader = sizeof(mapped::SlotHeader);
constexpr uint32_t kLeastSlice = 16 * 1024;
constexpr uint32_t kLeastSliceOfOne = 2 * 1024;

// Ends of lanes that a rank has in one channel, of the rank with the most.
struct Ends {
  uint64_t produced = 0;  // lanes
  uint64_t sent = 0;      // consumers of these lanes
  uint64_t received = 0;  // lanes that it consumes
};

Ends DirectEnds(Collective collective, uint64_t others) {
  switch (collective) {
    case Collective::kAllReduce: return {others + 1, 2 * others, 2 * others};
    case Collective::kAllGather: return {1, others, others};
    case Collective::kBroadcast: return {1, others, 1};
    case Collective::kReduce:
    case Collective::kGather: return {1, 1, others};
    case Collective::kScatter: return {others, others, 1};
    case Collective::kReduceScatter:
    case Collective::kAllToAll: break;
  }
  return {others, others, others};
}

// All-reduce: two planes of lanes inside the host in both directions, and results and sums from
// host to host. Reduce-scatter and all-gather have half of that; chains of hosts have two
// neighbours.
Ends HierarchicalEnds(Collective collective, const HostMap& hosts) {
  const int others = HasRoot(collective) ? 1 : hosts.hosts() - 1;
  uint64_t local = 0, remote = 0;
  for (int host = 0; host < hosts.hosts(); ++host) {
    const auto ranks = static_cast<int>(hosts.RanksOf(host).size());
    // A small host deals the rails of a large one among its few ranks.
    const int rails = (hosts.LargestHost() + ranks - 1) / ranks;
    local = std::max(local, static_cast<uint64_t>(ranks - 1));
    remote = std::max(remote, static_cast<uint64_t>(others) * static_cast<uint64_t>(rails));
  }
  const uint64_t all = collective == Collective::kAllReduce ? 4 * local + 3 * remote + 2
                                                            : 2 * local + 2 * remote + 2;
  return {all, all, all};
}

Ends EndsOf(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts) {
  const auto others = static_cast<uint64_t>(nranks - 1);
  const auto rounds = static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(nranks)));
  switch (algorithm) {
    case Algorithm::kRing: return {2, 2, 2};
    case Algorithm::kTree: return {4, 8, 8};
    case Algorithm::kRecursiveDoubling: return {rounds + 1, rounds + 1, rounds + 1};
    case Algorithm::kOneShot: return {1, others, others};
    case Algorithm::kTwoShot: return DirectEnds(collective, others);
    case Algorithm::kHierarchical:
      if (hosts != nullptr) return HierarchicalEnds(collective, *hosts);
      break;
    case Algorithm::kEnd: break;
  }
  return {};
}

bool HasOneAlgorithm(Collective collective) {
  int algorithms = 0;
  for (int a = 0; a < kAlgorithms; ++a) {
    algorithms += HasSchedules(collective, static_cast<Algorithm>(a)) ? 1 : 0;
  }
  return algorithms == 1;
}

}  // namespace

uint64_t UnderWay(const CostConstants& costs, const HostMap* hosts) {
  if (hosts == nullptr || hosts->hosts() <= 1) return 0;
  return BytesUnderWay(costs) / static_cast<uint64_t>(hosts->SmallestHost());
}

uint64_t SlotBytes(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                   const SlotBudget& budget, uint32_t slice_bytes) {
  const Ends ends = EndsOf(collective, algorithm, nranks, hosts);
  const bool shared = budget.shared_slots && (hosts == nullptr || hosts->hosts() == 1);
  const SlotOptions slots = SlotsFor(slice_bytes);
  return (shared ? ends.produced : ends.sent + ends.received) *
         static_cast<uint64_t>(budget.channels) *
         mapped::SlotsBytes(slots.data_bytes + kHeader, slots.data_depth);
}

SlotOptions SlotsOf(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                    const SlotBudget& budget, uint32_t slice_bytes) {
  SlotOptions slots = SlotsFor(slice_bytes, budget.under_way);
  const uint64_t least =
      std::max<uint64_t>(1, SlotBytes(collective, algorithm, nranks, hosts, budget, slice_bytes));
  const uint64_t fit = budget.bytes / least * kDataDepth;
  slots.network_data_depth = static_cast<uint16_t>(
      std::min<uint64_t>(slots.network_data_depth, std::max<uint64_t>(fit, kDataDepth)));
  return slots;
}

uint32_t LeastSliceBytes(Collective collective, const SlotBudget& budget) {
  return std::min(budget.slice_bytes, HasOneAlgorithm(collective) ? kLeastSliceOfOne : kLeastSlice);
}

uint32_t SliceBytesFor(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                       const SlotBudget& budget) {
  const uint32_t least = LeastSliceBytes(collective, budget);
  for (uint32_t slice = budget.slice_bytes; slice >= least; slice /= 2) {
    if (SlotBytes(collective, algorithm, nranks, hosts, budget, slice) <= budget.bytes) {
      return slice;
    }
  }
  return 0;
}

}  // namespace inccl
