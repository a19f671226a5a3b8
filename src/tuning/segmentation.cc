// SPDX-License-Identifier: Apache-2.0
#include "tuning/segmentation.h"

#include <algorithm>
#include <bit>

#include "collectives/schedule.h"
#include "transport/mapped/mapped_transport.h"

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

// All-reduce: two planes of lanes inside the group in both directions, and results and sums from
// group to group. Reduce-scatter and all-gather have half of that; chains of groups have two
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
      if (hosts != nullptr) return HierarchicalEnds(collective, hosts->Groups());
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
  const uint64_t of_one_each =
      SlotBytes(collective, algorithm, nranks, hosts, budget, slice_bytes) / kDataDepth;
  const uint64_t fit = budget.bytes / std::max<uint64_t>(1, of_one_each);
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

namespace {

constexpr uint16_t kSideDepth = 2;
constexpr uint32_t kSideSlotBytes = kWindow / kBlock;  // one scale code for every block of a window

// Over long links.
constexpr uint32_t kLeastFilled = 4;  // slices fill a fourth of a slot or more
constexpr uint64_t kMostDepth = 1024;
constexpr uint32_t kMostSlicesPerStep = 16;
constexpr uint64_t kLeastWindowBytes = kWindow / 4;  // two bits for each element
constexpr uint64_t kMostSideWindows = 64;

uint64_t RoundUp(uint64_t value, uint64_t grain) { return (value + grain - 1) / grain * grain; }

}  // namespace

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels, uint32_t slice_bytes,
                 const LongLinks& links) {
  ChunkingOptions options{call};
  options.group = links.slices_per_step;
  const uint64_t element_bytes = links.full_slices ? 1 : SizeOf(call.type);
  uint64_t slice = slice_bytes / element_bytes / kSuperblock * kSuperblock;
  // A codec may need more bytes per element than the caller's type.
  while (slice > kSuperblock &&
         codec.MaxBytes(call.type, call.nranks, static_cast<uint32_t>(slice)) > slice_bytes) {
    slice = std::max<uint64_t>(kSuperblock, slice / 2 / kSuperblock * kSuperblock);
  }
  options.slice_elements = static_cast<uint32_t>(std::max<uint64_t>(slice, kSuperblock));
  options.window_elements = codec.window_elements();
  if (options.window_elements == 0) {
    const uint64_t parallel =
        static_cast<uint64_t>(call.nranks) * static_cast<uint64_t>(channels) * kSlicesPerStep;
    options.window_elements =
        RoundUp(std::max<uint64_t>(kWindow, options.slice_elements * parallel), kSuperblock);
  }
  options.side_slice_elements =
      static_cast<uint32_t>(std::min<uint64_t>(options.window_elements, kWindow));
  while (codec.SideBytes(options.side_slice_elements) > kSideSlotBytes) {
    options.side_slice_elements /= 2;
  }
  return Chunking(options);
}

SlotOptions SlotsFor(uint32_t slice_bytes, uint64_t under_way) {
  // A slice has at least one superblock, also of wide types.
  SlotOptions slots{.data_bytes = std::max<uint32_t>(slice_bytes, kSuperblock * 8),
                    .side_bytes = kSideSlotBytes,
                    .data_depth = kDataDepth,
                    .side_depth = kSideDepth,
                    .network_data_depth = kDataDepth,
                    .network_side_depth = kSideDepth,
                    .side_windows = kSideWindows};
  if (under_way == 0) return slots;
  // Half as much again as the links hold, in slices that the codec has made to a quarter of a slot.
  const uint64_t wanted = under_way + under_way / 2;
  const auto within = [](uint64_t value, uint64_t most) {
    return static_cast<uint16_t>(std::min(value, most));
  };
  slots.network_data_depth = within(kDataDepth + wanted / (slice_bytes / kLeastFilled), kMostDepth);
  slots.side_windows = within(kSideWindows + wanted / kLeastWindowBytes, kMostSideWindows);
  slots.network_side_depth = slots.side_windows;
  return slots;
}

LongLinks LongLinksFor(const SlotOptions& slots, const HostMap* hosts, uint64_t under_way) {
  if (under_way == 0 || hosts == nullptr) return {};
  LongLinks links{.full_slices = true};
  if (hosts->LargestHost() == 1) {
    links.slices_per_step =
        std::clamp<uint32_t>(slots.network_data_depth / 2, kSlicesPerStep, kMostSlicesPerStep);
  }
  return links;
}

size_t StorePolicy::Place(uint64_t bytes) {
  static_assert(std::bit_width(kMost - 1) - std::bit_width(kLeast) + 1 == 11);
  return static_cast<size_t>(std::bit_width(bytes) - std::bit_width(kLeast));
}

bool StorePolicy::NonTemporal(uint64_t bytes) const {
  if (!Learns(bytes, false)) return bytes >= kMost;
  const Size& size = sizes_[Place(bytes)];
  if (size.time[0] == 0 || size.time[1] == 0) return bytes >= kLarge;
  return size.time[1] < size.time[0];
}

StorePolicy::Choice StorePolicy::Choose(uint64_t bytes, bool one_way) {
  if (!Learns(bytes, one_way)) return {.non_temporal = bytes >= kLeast};
  Size& size = sizes_[Place(bytes)];
  const uint32_t call = size.calls++;
  if (call < kCold + 4) return {.non_temporal = call % 2 == 1, .until_read = one_way};
  const bool non_temporal = NonTemporal(bytes);
  const auto [least, most] = std::minmax(size.time[0], size.time[1]);
  const bool known = call >= kFarProbe && most > least + least / 2;
  const uint32_t probe = known ? kFarProbe : kProbe;
  if (call % probe == 0) return {.non_temporal = !non_temporal, .until_read = one_way};
  return {.non_temporal = non_temporal, .until_read = one_way && call % kProbe == kProbe / 2};
}

void StorePolicy::Learn(uint64_t bytes, bool one_way, const Choice& way, Time took) {
  if (!Learns(bytes, one_way) || (one_way && !way.until_read)) return;
  Size& size = sizes_[Place(bytes)];
  if (size.calls <= kCold) return;
  Time& time = size.time[way.non_temporal ? 1 : 0];
  // Other load may delay a single call by any amount; several slow calls in a row count.
  time = time == 0 || took < time ? took : time + std::min(took - time, time / 8);
}

}  // namespace inccl
