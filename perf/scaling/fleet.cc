// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/fleet.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/rng.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kNoKey = std::numeric_limits<uint64_t>::max();

// Lanes by key, with linear probing: there are tens of millions.
class LaneIndex {
 public:
  LaneIndex() : slots_(1 << 16) {}
  // The lane with this key; `next` and true if there is none yet.
  std::pair<uint32_t, bool> FindOrAdd(uint64_t key, uint32_t next) {
    if (used_ * 2 >= slots_.size()) Grow();
    Slot& slot = At(key);
    if (slot.key == key) return {slot.lane, false};
    slot = {key, next};
    ++used_;
    return {next, true};
  }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    uint32_t lane = 0;
  };
  Slot& At(uint64_t key) {
    size_t place = Mix64(key) & (slots_.size() - 1);
    while (slots_[place].key != kNoKey && slots_[place].key != key) {
      place = (place + 1) & (slots_.size() - 1);
    }
    return slots_[place];
  }
  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) At(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// Turns the schedules into a fleet, rank by rank.
class Builder {
 public:
  Builder(const HostMap& hosts, Fleet* fleet) : hosts_(hosts), fleet_(fleet) {}

  void Add(const Schedule& schedule) {
    schedule_ = &schedule;
    FleetRank& rank = fleet_->ranks.emplace_back();
    lists_.clear();
    for (size_t s = 0; s < schedule.strands.size(); ++s) {
      const Strand& strand = schedule.strands[s];
      FleetStrand& made = rank.strands.emplace_back();
      made.phase = strand.phase;
      made.channel = strand.channel;
      made.waits = strand.waits;
      made.steps.reserve(strand.steps.size());
      for (const Step& step : strand.steps) {
        const Operand* const operands = schedule.operands.data() + step.first_operand;
        inputs_.clear();
        outputs_.clear();
        for (uint32_t i = 0; i < step.inputs; ++i) {
          AddInput(operands[i], static_cast<uint8_t>(s));
        }
        for (uint32_t i = step.inputs; i < uint32_t{step.inputs} + step.outputs; ++i) {
          AddOutput(operands[i], static_cast<uint8_t>(s));
        }
        made.steps.push_back({operands[0].chunk, Store(&rank, inputs_), Store(&rank, outputs_)});
      }
    }
    rank.operands.shrink_to_fit();
  }

 private:
  // The lane from `producer` to these consumers, all of them on its host or one on another.
  uint32_t LaneTo(const ScheduleLane& lane, std::span<const int> consumers) {
    const uint64_t key = uint64_t{static_cast<uint8_t>(lane.lane_class)} << 56 |
                         uint64_t{lane.channel} << 48 |
                         uint64_t{static_cast<uint32_t>(lane.producer)} << 24 |
                         static_cast<uint32_t>(consumers.front());
    const auto [index, is_new] = index_.FindOrAdd(key, static_cast<uint32_t>(fleet_->lanes.size()));
    if (!is_new) return index;
    fleet_->lanes.push_back({.producer = static_cast<uint32_t>(lane.producer),
                             .first_end = static_cast<uint32_t>(fleet_->ends.size()),
                             .ends = static_cast<uint16_t>(consumers.size()),
                             .remote = !hosts_.SameHost(lane.producer, consumers.front()),
                             .far = SiteOf(lane.producer) != SiteOf(consumers.front()),
                             .side = lane.lane_class == LaneClass::kSide});
    for (const int consumer : consumers) {
      fleet_->ends.push_back({.consumer = static_cast<uint32_t>(consumer), .lane = index});
    }
    return index;
  }

  int SiteOf(int rank) const { return hosts_.SiteOf(hosts_.HostOf(rank)); }

  // The consumers on the producer's host.
  std::span<const int> Local(const ScheduleLane& lane) {
    local_.clear();
    for (const int consumer : lane.consumers) {
      if (hosts_.SameHost(consumer, lane.producer)) local_.push_back(consumer);
    }
    return local_;
  }

  void AddInput(const Operand& operand, uint8_t strand) {
    FleetOperand made{.space = operand.space, .format = operand.format};
    if (operand.space == Space::kLane) {
      const ScheduleLane& lane = schedule_->lanes[operand.index];
      const int self = schedule_->rank;
      const std::span<const int> consumers =
          hosts_.SameHost(self, lane.producer) ? Local(lane) : std::span(&self, 1);
      const auto place = std::find(consumers.begin(), consumers.end(), self) - consumers.begin();
      made.index = fleet_->lanes[LaneTo(lane, consumers)].first_end + static_cast<uint32_t>(place);
      fleet_->ends[made.index].strand = strand;
    }
    inputs_.push_back(made);
  }

  void AddOutput(const Operand& operand, uint8_t strand) {
    FleetOperand made{.space = operand.space, .format = operand.format};
    if (operand.space != Space::kLane) {
      outputs_.push_back(made);
      return;
    }
    const ScheduleLane& lane = schedule_->lanes[operand.index];
    const auto add = [&](std::span<const int> consumers) {
      made.index = LaneTo(lane, consumers);
      fleet_->lanes[made.index].strand = strand;
      outputs_.push_back(made);
    };
    if (const std::span<const int> local = Local(lane); !local.empty()) add(local);
    for (const int consumer : lane.consumers) {
      if (!hosts_.SameHost(consumer, lane.producer)) add({&consumer, 1});
    }
  }

  uint32_t Store(FleetRank* rank, const std::vector<FleetOperand>& list) {
    uint64_t hash = list.size();
    for (const FleetOperand& operand : list) {
      hash = Mix64(hash ^
                   (uint64_t{operand.index} << 32 | uint64_t{operand.format.contributions} << 16 |
                    uint64_t{static_cast<uint8_t>(operand.space)} << 8 |
                    uint64_t{static_cast<uint8_t>(operand.format.form)}));
    }
    const auto [entry, is_new] =
        lists_.try_emplace(hash, static_cast<uint32_t>(rank->operands.size()));
    if (is_new) {
      rank->operands.push_back({.index = static_cast<uint32_t>(list.size()), .format = {}});
      rank->operands.insert(rank->operands.end(), list.begin(), list.end());
    }
    return entry->second;
  }

  const HostMap& hosts_;
  Fleet* const fleet_;
  const Schedule* schedule_ = nullptr;
  LaneIndex index_;
  std::vector<int> local_;
  std::vector<FleetOperand> inputs_, outputs_;
  std::unordered_map<uint64_t, uint32_t> lists_;  // of the rank, by hash
};

}  // namespace

Result<Fleet> MakeFleet(ScheduleRequest request, const HostMap& hosts) {
  Fleet fleet;
  Builder builder(hosts, &fleet);
  request.nranks = hosts.nranks();
  request.hosts = &hosts;
  fleet.ranks.reserve(static_cast<size_t>(hosts.nranks()));
  for (int rank = 0; rank < hosts.nranks(); ++rank) {
    request.rank = rank;
    Result<Schedule> schedule = MakeSchedule(request);
    if (!schedule.ok()) return schedule.status();
    if (rank == 0) fleet.phases = schedule->phases;
    builder.Add(*schedule);
  }
  return fleet;
}

HostMap EqualHosts(int ranks, int per_host, int sites) {
  std::vector<uint64_t> identities;
  for (int rank = 0; rank < ranks; ++rank) {
    identities.push_back(static_cast<uint64_t>(rank / per_host));
  }
  HostMap hosts(identities);
  std::vector<int> site_of;
  for (int host = 0; host < hosts.hosts(); ++host) site_of.push_back(host * sites / hosts.hosts());
  hosts.SetSites(std::move(site_of));
  return hosts;
}

}  // namespace inccl::perf
