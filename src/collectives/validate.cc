// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "collectives/schedule.h"
#include "collectives/validate_parts.h"

namespace inccl {
namespace {

bool SamePhases(const Schedule& a, const Schedule& b) {
  if (a.phases.size() != b.phases.size()) return false;
  for (size_t i = 0; i < a.phases.size(); ++i) {
    const Phase &x = a.phases[i], &y = b.phases[i];
    if (x.chunks != y.chunks || x.channels != y.channels || x.lane_class != y.lane_class) {
      return false;
    }
  }
  return true;
}

// Checks that the schedules are those of ranks 0, 1, ... of one call.
Status CheckTogether(std::span<const Schedule> schedules) {
  const Schedule& first = schedules[0];
  for (size_t i = 0; i < schedules.size(); ++i) {
    const Schedule& schedule = schedules[i];
    if (schedule.rank != static_cast<int>(i)) {
      return InternalError(fmt::format("schedule {} is that of rank {}", i, schedule.rank));
    }
    if (schedule.nranks != static_cast<int>(schedules.size())) {
      return InternalError(fmt::format("rank {}: nranks is {}, but there are {} schedules", i,
                                       schedule.nranks, schedules.size()));
    }
    if (schedule.collective != first.collective || schedule.algorithm != first.algorithm ||
        schedule.root != first.root || !SamePhases(schedule, first)) {
      return InternalError(fmt::format(
          "rank {}: collective, algorithm, root or phases differ from those of rank 0", i));
    }
  }
  return Status::Ok();
}

Result<Proof> Prove(std::span<const Schedule> schedules, int windows, const HostMap* hosts) {
  if (Status status = CheckTogether(schedules); !status.ok()) return status;
  for (const Schedule& schedule : schedules) {
    if (Status status = CheckStructure(schedule); !status.ok()) return status;
  }
  const Result<SharedLanes> table = MatchLanes(schedules);
  if (!table.ok()) return table.status();
  return RunSymbolically(schedules, *table, windows, hosts);
}

}  // namespace

int SourceOf(const Schedule& schedule, int chunk) {
  switch (schedule.collective) {
    case Collective::kAllGather:
    case Collective::kGather: return chunk;
    case Collective::kBroadcast:
    case Collective::kScatter: return schedule.root;
    case Collective::kAllToAll: return chunk / schedule.nranks;
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce: break;
  }
  return -1;
}

bool HasInput(const Schedule& schedule, int chunk) {
  const int source = SourceOf(schedule, chunk);
  return source < 0 || source == schedule.rank;
}

bool HasOutput(const Schedule& schedule, const Phase& phase, int chunk) {
  if (phase.lane_class == LaneClass::kSide) return true;
  switch (schedule.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter: return chunk == schedule.rank;
    case Collective::kReduce:
    case Collective::kGather: return schedule.rank == schedule.root;
    case Collective::kAllToAll: return chunk % schedule.nranks == schedule.rank;
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kBroadcast: break;
  }
  return true;
}

Result<Proof> Validate(std::span<const Schedule> schedules, int windows, const HostMap* hosts) {
  if (schedules.empty()) return InvalidArgument("Validate: no schedules");
  if (windows < 1)
    return InvalidArgument(fmt::format("Validate: windows is {}, not positive", windows));
  if (hosts != nullptr && hosts->nranks() != static_cast<int>(schedules.size())) {
    return InvalidArgument(fmt::format("Validate: the hosts are those of {} ranks, not of {}",
                                       hosts->nranks(), schedules.size()));
  }
  Result<Proof> proof = Prove(schedules, windows, hosts);
  if (proof.ok()) return proof;
  return Status(proof.status().code(),
                fmt::format("{}: {}", Title(schedules[0]), proof.status().message()));
}

}  // namespace inccl
