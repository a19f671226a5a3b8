// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.h"

#include <fmt/format.h>

#include <limits>

#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

constexpr int kMaxRanks = std::numeric_limits<uint16_t>::max();
// Side information of row r overwrites that of row r - kSideRows in the codec's state.
constexpr int kSideRows = 2;

struct Entry {
  Collective collective;
  Algorithm algorithm;
  void (*build)(PhaseBuilder*);
};

constexpr Entry kTable[] = {
    {Collective::kAllReduce, Algorithm::kRing, AllReduceRing},
    {Collective::kAllReduce, Algorithm::kTree, AllReduceTree},
    {Collective::kAllReduce, Algorithm::kRecursiveDoubling, AllReduceRecursiveDoubling},
    {Collective::kAllReduce, Algorithm::kDirectOneShot, AllReduceDirectOneShot},
    {Collective::kAllReduce, Algorithm::kDirect, AllReduceDirect},
    {Collective::kReduceScatter, Algorithm::kRing, ReduceScatterRing},
    {Collective::kReduceScatter, Algorithm::kDirect, ReduceScatterDirect},
    {Collective::kAllGather, Algorithm::kRing, AllGatherRing},
    {Collective::kAllGather, Algorithm::kDirect, AllGatherDirect},
    {Collective::kBroadcast, Algorithm::kRing, BroadcastRing},
    {Collective::kBroadcast, Algorithm::kTree, BroadcastTree},
    {Collective::kBroadcast, Algorithm::kDirect, BroadcastDirect},
    {Collective::kReduce, Algorithm::kRing, ReduceRing},
    {Collective::kReduce, Algorithm::kTree, ReduceTree},
    {Collective::kReduce, Algorithm::kDirect, ReduceDirect},
    {Collective::kAllToAll, Algorithm::kDirect, AllToAllDirect},
    {Collective::kGather, Algorithm::kDirect, GatherDirect},
    {Collective::kScatter, Algorithm::kDirect, ScatterDirect},
};

const Entry* Find(Collective collective, Algorithm algorithm) {
  for (const Entry& entry : kTable) {
    if (entry.collective == collective && entry.algorithm == algorithm) return &entry;
  }
  return nullptr;
}

// Ranks and chunks are numbered in 16 bits.
int MostRanks(Collective collective) {
  constexpr uint64_t kMany = kMaxRanks;
  return SegmentsOf(collective, kMany) > kMany ? 255 : kMaxRanks;
}

Status CheckRequest(const ScheduleRequest& request) {
  const char* name = Name(request.collective);
  if (Find(request.collective, request.algorithm) == nullptr) {
    return InvalidArgument(
        fmt::format("{}: there is no algorithm {}", name, Name(request.algorithm)));
  }
  const int n = request.nranks, most = MostRanks(request.collective);
  if (n < 1 || n > most) {
    return InvalidArgument(fmt::format("{}: nranks is {}, not 1..{}", name, n, most));
  }
  if (request.rank < 0 || request.rank >= n) {
    return InvalidArgument(fmt::format("{}: rank is {}, not 0..{}", name, request.rank, n - 1));
  }
  if (request.root < 0 || request.root >= n) {
    return InvalidArgument(fmt::format("{}: root is {}, not 0..{}", name, request.root, n - 1));
  }
  if (request.channels < 1 || request.channels > kMaxChannels) {
    return InvalidArgument(
        fmt::format("{}: channels is {}, not 1..{}", name, request.channels, kMaxChannels));
  }
  if (request.side_phase && request.collective != Collective::kAllReduce) {
    return InvalidArgument(fmt::format("{}: only allreduce has a side phase", name));
  }
  return Status::Ok();
}

// One rank: every result is the input.
void Alone(PhaseBuilder* phase) {
  for (int channel = 0; channel < phase->channels(); ++channel) {
    phase->AddStep(phase->AddStrand(channel), 0, {phase->Input()}, {phase->Output()});
  }
}

bool WritesOutput(const Schedule& schedule, const Strand& strand) {
  for (const Step& step : strand.steps) {
    for (uint32_t i = 0; i < step.outputs; ++i) {
      if (schedule.operands[step.first_operand + step.inputs + i].space == Space::kOutput) {
        return true;
      }
    }
  }
  return false;
}

// Data of a row waits for the side information of that row; side information runs at most one row
// ahead of the data.
void CouplePhases(Schedule* schedule) {
  for (Strand& strand : schedule->strands) {
    for (size_t i = 0; i < schedule->strands.size(); ++i) {
      const Strand& other = schedule->strands[i];
      if (strand.phase == other.phase) continue;
      if (strand.phase == 0) {
        strand.waits.push_back({static_cast<uint16_t>(i), kSideRows});
      } else if (WritesOutput(*schedule, other)) {
        strand.waits.push_back({static_cast<uint16_t>(i), 0});
      }
    }
  }
}

// Indices into these are 16 bits wide.
Status CheckSizes(const Schedule& schedule) {
  constexpr size_t kMax = std::numeric_limits<uint16_t>::max();
  if (schedule.lanes.size() <= kMax && schedule.strands.size() <= kMax) return Status::Ok();
  return InvalidArgument(fmt::format(
      "{} {}: {} ranks with {} channels need {} lanes and {} strands, more than {}",
      Name(schedule.collective), Name(schedule.algorithm), schedule.nranks,
      schedule.phases.back().channels, schedule.lanes.size(), schedule.strands.size(), kMax));
}

}  // namespace

bool HasSchedule(Collective collective, Algorithm algorithm, int nranks) {
  return nranks >= 1 && nranks <= MostRanks(collective) && Find(collective, algorithm) != nullptr;
}

Result<Schedule> MakeSchedule(const ScheduleRequest& request) {
  if (Status status = CheckRequest(request); !status.ok()) return status;
  Schedule schedule;
  schedule.collective = request.collective;
  schedule.algorithm = request.algorithm;
  schedule.nranks = request.nranks;
  schedule.rank = request.rank;
  schedule.root = request.root;
  const bool alone = request.nranks == 1;
  if (request.side_phase) {
    PhaseBuilder side(&schedule, LaneClass::kSide, 1);
    auto build = request.side_one_shot ? AllReduceDirectOneShot : AllReduceDirect;
    (alone ? Alone : build)(&side);
  }
  PhaseBuilder data(&schedule, LaneClass::kData, request.channels);
  (alone ? Alone : Find(request.collective, request.algorithm)->build)(&data);
  if (request.side_phase) CouplePhases(&schedule);
  if (Status status = CheckSizes(schedule); !status.ok()) return status;
  return schedule;
}

}  // namespace inccl
