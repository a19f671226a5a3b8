// SPDX-License-Identifier: Apache-2.0
#include "init/slot_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "compress/identity_codec.h"
#include "transport/mapped/mapped_transport.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

// The sizes for which the tuner is asked; on one host it has a rule for small and one for large
// calls.
constexpr uint64_t kSmall = 1024, kLarge = uint64_t{1} << 30;
constexpr uint64_t kFactorOneHost = kLarge / kSmall, kFactorHosts = 4;
// For credits, tables, and memory that is committed ahead and not used.
constexpr uint64_t kMargin = uint64_t{8} << 20;
// With more ranks, the lanes of all roots and ranks are too many to look at. The budget of the
// algorithms holds; a transport whose memory ends says so when a call opens its lanes.
constexpr int kMostRanksCounted = 128;
// Upper bound of a rank's lanes in any schedule, per rank and channel.
constexpr uint64_t kMostLanes = 8;

// The lanes that one rank produces.
class Lanes {
 public:
  Lanes(int rank, bool shared_slots) : rank_(rank), shared_slots_(shared_slots) {}
  int rank() const { return rank_; }
  bool shared_slots() const { return shared_slots_; }
  void Add(LaneSpec spec) {
    if (spec.producer != rank_) return;
    if (shared_slots_) return AddOne(spec);
    const std::vector<int> consumers = spec.consumers;
    for (const int consumer : consumers) {
      spec.consumers = {consumer};
      AddOne(spec);
    }
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void AddOne(const LaneSpec& spec) {
    if (keys_.insert(spec.Key()).second) bytes_ += mapped::LaneBytes(spec.slot_bytes, spec.depth);
  }

  const int rank_;
  const bool shared_slots_;
  std::set<uint64_t> keys_;
  uint64_t bytes_ = 0;
};

SlotBudget BudgetOf(const CommOptions& options, bool shared_slots) {
  return {.bytes = options.slot_bytes_max,
          .slice_bytes = options.slice_bytes,
          .channels = options.channels,
          .shared_slots = shared_slots};
}

// Adds the lanes of a call, unless an earlier call of `done` has them.
Status AddCall(const CommOptions& options, const HostMap& hosts, Collective collective, int root,
               const Codec& codec, uint64_t bytes, std::set<std::pair<Algorithm, bool>>* done,
               Lanes* lanes) {
  const bool compressed = &codec != IdentityCodec().get();
  const CollectiveArgs call{.collective = collective,
                            .type = DataType::kFloat32,
                            .nranks = hosts.nranks(),
                            .rank = lanes->rank(),
                            .root = root,
                            .count = bytes / SizeOf(DataType::kFloat32)};
  const SlotBudget budget = BudgetOf(options, lanes->shared_slots());
  Result<Choice> choice =
      Choose({call, compressed, options.reproducible, compressed ? codec.route() : Route{},
              /*below_min_bytes=*/false, &hosts, budget,
              compressed ? WireBitsOf(codec, collective, hosts.nranks()) : WireBits()},
             options.algorithms, options.tuner_table);
  if (!choice.ok()) return Status::Ok();  // such a call is refused
  if (!done->emplace(choice->algorithm, choice->side_one_shot).second) return Status::Ok();
  Result<Schedule> schedule =
      MakeSchedule({call, choice->algorithm, options.channels, codec.side_phases().size(),
                    choice->side_one_shot, codec.route().group, &hosts});
  if (!schedule.ok()) return schedule.status();
  const SlotOptions slots =
      SlotsFor(SliceBytesFor(collective, choice->algorithm, hosts.nranks(), &hosts, budget));
  for (const ScheduleLane& lane : schedule->lanes) {
    const bool side = lane.lane_class == LaneClass::kSide;
    lanes->Add({.lane_class = lane.lane_class,
                .channel = lane.channel,
                .producer = lane.producer,
                .consumers = lane.consumers,
                .slot_bytes = side ? slots.side_bytes : slots.data_bytes,
                .depth = side ? slots.side_depth : slots.data_depth});
  }
  return Status::Ok();
}

Result<uint64_t> SlotMemoryOf(int rank, const CommOptions& options, const HostMap& hosts,
                              bool shared_slots) {
  const int nranks = hosts.nranks();
  Lanes lanes(rank, shared_slots);
  const Codec& plain = *IdentityCodec();
  const uint64_t factor = hosts.hosts() == 1 ? kFactorOneHost : kFactorHosts;
  for (int c = 0; c < kCollectiveKinds; ++c) {
    const auto collective = static_cast<Collective>(c);
    const int roots = HasRoot(collective) ? nranks : 1;  // each root has its own tree
    const Codec* const codec = options.default_codec.get();
    const bool supported =
        codec != nullptr && codec != &plain &&
        codec->Supports(collective, DataType::kFloat32, ReduceOp::kSum, nranks).ok() &&
        codec->Fits(collective, nranks).ok();
    for (int root = 0; root < roots; ++root) {
      std::set<std::pair<Algorithm, bool>> done, done_compressed;
      for (uint64_t bytes = kSmall; bytes <= kLarge; bytes *= factor) {
        Status status = AddCall(options, hosts, collective, root, plain, bytes, &done, &lanes);
        if (status.ok() && supported && bytes >= codec->min_bytes()) {
          status =
              AddCall(options, hosts, collective, root, *codec, bytes, &done_compressed, &lanes);
        }
        if (!status.ok()) return status;
      }
    }
  }
  const SlotOptions slots = SlotsFor(options.slice_bytes);
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    lanes.Add({.lane_class = LaneClass::kSendRecv,
               .channel = 0,
               .producer = rank,
               .consumers = {peer},
               .slot_bytes = slots.data_bytes,
               .depth = slots.data_depth});
  }
  return lanes.bytes();
}

}  // namespace

// On one host every rank produces as many lanes, except with trees, whose lanes take little.
Result<uint64_t> SlotMemory(const CommOptions& options, const HostMap& hosts, bool shared_slots) {
  uint64_t most = 0;
  for (int rank = 0; rank < (hosts.hosts() == 1 ? 1 : hosts.nranks()); ++rank) {
    Result<uint64_t> bytes = SlotMemoryOf(rank, options, hosts, shared_slots);
    if (!bytes.ok()) return bytes;
    most = std::max(most, *bytes);
  }
  return most;
}

Status CheckSlotMemory(const CommOptions& options, const HostMap& hosts, const Caps& caps) {
  const int nranks = hosts.nranks();
  if (nranks == 1 || nranks > kMostRanksCounted || caps.slot_memory == UINT64_MAX) {
    return Status::Ok();
  }
  const SlotOptions slots = SlotsFor(options.slice_bytes);
  const uint64_t most = kMostLanes * static_cast<uint64_t>(nranks) *
                        static_cast<uint64_t>(options.channels) *
                        mapped::LaneBytes(slots.data_bytes, slots.data_depth);
  if (most + kMargin <= caps.slot_memory) return Status::Ok();  // no need to look at schedules
  Result<uint64_t> need = SlotMemory(options, hosts, caps.shared_slots);
  if (!need.ok()) return need.status();
  if (*need + kMargin <= caps.slot_memory) return Status::Ok();
  return InvalidArgument(
      fmt::format("INCCL_SLICE_BYTES={} and INCCL_CHANNELS={} (channels) with {} ranks need {} MiB "
                  "of slots per "
                  "rank, and {} has {} MiB: lower one of them",
                  options.slice_bytes, options.channels, nranks, (*need + kMargin) >> 20, caps.name,
                  caps.slot_memory >> 20));
}

}  // namespace inccl
