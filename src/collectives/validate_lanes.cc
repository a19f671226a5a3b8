// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "collectives/schedule.h"
#include "collectives/validate_parts.h"

namespace inccl {
namespace {

struct LessLane {
  bool operator()(const ScheduleLane* a, const ScheduleLane* b) const {
    return std::tie(a->producer, a->lane_class, a->channel, a->consumers) <
           std::tie(b->producer, b->lane_class, b->channel, b->consumers);
  }
};

// No two lanes that a rank reads share class, channel and producer. As this holds for every
// consumer, all lanes of a schedule are distinct, even with one lane per consumer.
Status CheckApart(const Schedule& schedule) {
  std::set<std::tuple<int, LaneClass, int>> read;
  for (const ScheduleLane& lane : schedule.lanes) {
    if (lane.producer == schedule.rank) continue;
    if (!read.insert({lane.producer, lane.lane_class, lane.channel}).second) {
      return InternalError(
          fmt::format("rank {}: another lane from rank {} has class and channel of lane {}",
                      schedule.rank, lane.producer, Text(lane)));
    }
  }
  return Status::Ok();
}

// Finds the one strand that uses each lane of a schedule.
Status FindStrands(const Schedule& schedule, std::vector<int>* strand_of) {
  strand_of->assign(schedule.lanes.size(), -1);
  for (size_t i = 0; i < schedule.strands.size(); ++i) {
    const int strand = static_cast<int>(i);
    for (size_t s = 0; s < schedule.strands[i].steps.size(); ++s) {
      const Step& step = schedule.strands[i].steps[s];
      for (uint32_t k = 0; k < uint32_t{step.inputs} + step.outputs; ++k) {
        const Operand& operand = schedule.operands[step.first_operand + k];
        if (operand.space != Space::kLane) continue;
        int& user = (*strand_of)[operand.index];
        if (user >= 0 && user != strand) {
          return InternalError(fmt::format("{}: lane {} is also used by strand {}",
                                           Place(schedule.rank, i, s),
                                           Text(schedule.lanes[operand.index]), user));
        }
        user = strand;
      }
    }
  }
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    if ((*strand_of)[lane] < 0) {
      return InternalError(fmt::format("rank {}: no strand uses lane {}", schedule.rank,
                                       Text(schedule.lanes[lane])));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<SharedLanes> MatchLanes(std::span<const Schedule> schedules) {
  SharedLanes table;
  table.ends.resize(schedules.size());
  std::map<const ScheduleLane*, int, LessLane> known;
  std::vector<std::vector<int>> strand_of(schedules.size());
  for (const Schedule& schedule : schedules) {
    const size_t rank = static_cast<size_t>(schedule.rank);
    if (Status status = CheckApart(schedule); !status.ok()) return status;
    if (Status status = FindStrands(schedule, &strand_of[rank]); !status.ok()) return status;
    table.ends[rank].resize(schedule.lanes.size());
    for (size_t i = 0; i < schedule.lanes.size(); ++i) {
      const ScheduleLane& lane = schedule.lanes[i];
      if (lane.producer != schedule.rank) continue;
      const int shared = static_cast<int>(table.lanes.size());
      if (!known.emplace(&lane, shared).second) {
        return InternalError(
            fmt::format("rank {}: lane {} stands twice in its list", rank, Text(lane)));
      }
      table.ends[rank][i].shared = shared;
      table.lanes.push_back({&lane, strand_of[rank][i], std::vector(lane.consumers.size(), -1)});
    }
  }
  for (const Schedule& schedule : schedules) {
    const size_t rank = static_cast<size_t>(schedule.rank);
    for (size_t i = 0; i < schedule.lanes.size(); ++i) {
      const ScheduleLane& lane = schedule.lanes[i];
      if (lane.producer == schedule.rank) continue;
      const auto found = known.find(&lane);
      if (found == known.end()) {
        return InternalError(fmt::format("rank {}: rank {} does not produce lane {}", rank,
                                         lane.producer, Text(lane)));
      }
      const auto place =
          std::lower_bound(lane.consumers.begin(), lane.consumers.end(), schedule.rank);
      const auto consumer = place - lane.consumers.begin();
      table.ends[rank][i] = {found->second, static_cast<int>(consumer)};
      table.lanes[static_cast<size_t>(found->second)]
          .consumer_strands[static_cast<size_t>(consumer)] = strand_of[rank][i];
    }
  }
  for (const SharedLane& shared : table.lanes) {
    for (size_t i = 0; i < shared.consumer_strands.size(); ++i) {
      if (shared.consumer_strands[i] >= 0) continue;
      return InternalError(fmt::format("rank {}: does not consume lane {} of rank {}",
                                       shared.lane->consumers[i], Text(*shared.lane),
                                       shared.lane->producer));
    }
  }
  return table;
}

}  // namespace inccl
