// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "base/types.h"
#include "collectives/schedule_builder.h"

namespace inccl {
namespace {

constexpr int kMost16Bits = std::numeric_limits<uint16_t>::max();

struct Entry {
  Collective collective;
  Algorithm algorithm;
  void (*build)(PhaseBuilder*);
};

constexpr Entry kTable[] = {
    {Collective::kAllReduce, Algorithm::kRing, AllReduceRing},
    {Collective::kAllReduce, Algorithm::kTree, AllReduceTree},
    {Collective::kAllReduce, Algorithm::kRecursiveDoubling, AllReduceRecursiveDoubling},
    {Collective::kAllReduce, Algorithm::kOneShot, AllReduceDirectOneShot},
    {Collective::kAllReduce, Algorithm::kTwoShot, AllReduceDirect},
    {Collective::kReduceScatter, Algorithm::kRing, ReduceScatterRing},
    {Collective::kReduceScatter, Algorithm::kTwoShot, ReduceScatterDirect},
    {Collective::kAllGather, Algorithm::kRing, AllGatherRing},
    {Collective::kAllGather, Algorithm::kTwoShot, AllGatherDirect},
    {Collective::kBroadcast, Algorithm::kRing, BroadcastRing},
    {Collective::kBroadcast, Algorithm::kTree, BroadcastTree},
    {Collective::kBroadcast, Algorithm::kTwoShot, BroadcastDirect},
    {Collective::kReduce, Algorithm::kRing, ReduceRing},
    {Collective::kReduce, Algorithm::kTree, ReduceTree},
    {Collective::kReduce, Algorithm::kTwoShot, ReduceDirect},
    {Collective::kAllReduce, Algorithm::kHierarchical, AllReduceHierarchical},
    {Collective::kReduceScatter, Algorithm::kHierarchical, ReduceScatterHierarchical},
    {Collective::kAllGather, Algorithm::kHierarchical, AllGatherHierarchical},
    {Collective::kBroadcast, Algorithm::kHierarchical, BroadcastHierarchical},
    {Collective::kReduce, Algorithm::kHierarchical, ReduceHierarchical},
    {Collective::kAllToAll, Algorithm::kTwoShot, AllToAllDirect},
    {Collective::kGather, Algorithm::kTwoShot, GatherDirect},
    {Collective::kScatter, Algorithm::kTwoShot, ScatterDirect},
};

const Entry* Find(Collective collective, Algorithm algorithm) {
  for (const Entry& entry : kTable) {
    if (entry.collective == collective && entry.algorithm == algorithm) return &entry;
  }
  return nullptr;
}

// The algorithm that gives all ranks the side information of all segments; null if there is no such
// phase.
using Build = void (*)(PhaseBuilder*);
Build SidePhaseOf(const ScheduleRequest& request) {
  // The hierarchical ones need all planes, which one side phase has to itself.
  const bool two_levels = TraitsOf(request.algorithm).several_hosts && request.side_phases == 1;
  switch (request.collective) {
    case Collective::kAllReduce:
      if (request.side_one_shot) return AllReduceDirectOneShot;
      if (two_levels) return AllReduceHierarchical;
      return request.nranks > kMostDirectRanks && request.side_phases == 1 ? AllReduceTree
                                                                           : AllReduceDirect;
    // Segment c is chunk c, whose agreement rank c computes.
    case Collective::kReduceScatter:
      if (request.side_one_shot) return nullptr;
      return two_levels ? AllReduceSegmentsHierarchical : AllReduceDirect;
    case Collective::kAllGather:
      if (request.side_one_shot) return nullptr;
      return two_levels ? AllGatherHierarchical : AllGatherDirect;
    default: return nullptr;
  }
}

// Whether the ranks form more than one group.
bool HasGroups(const ScheduleRequest& request) {
  return request.collective == Collective::kAllReduce && TraitsOf(request.algorithm).groups &&
         request.group > 0 && request.group < request.nranks;
}

Build DataPhaseOf(const ScheduleRequest& request) {
  if (HasGroups(request)) return AllReduceDirectGroups;
  return Find(request.collective, request.algorithm)->build;
}

// From a root or to it, a site is no group: its ranks would send every element to each other.
bool HasTwoLevels(Collective collective, const HostMap* hosts) {
  if (hosts == nullptr || (HasRoot(collective) && hosts->LargestHost() == 1)) return false;
  return hosts->HasGroups();
}

// Contributions and the steps' operands are counted in 16 bits, chunks in 32.
int MostRanks(Collective collective) {
  constexpr uint64_t kManyRanks = kMost16Bits;
  return SegmentsOf(collective, kManyRanks) > kManyRanks ? kMaxRanks : kMost16Bits;
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
  if (request.hosts != nullptr && request.hosts->nranks() != n) {
    return InvalidArgument(fmt::format("{}: the hosts are those of {} ranks, not of {}", name,
                                       request.hosts->nranks(), n));
  }
  if (n > 1 && TraitsOf(request.algorithm).several_hosts &&
      !HasTwoLevels(request.collective, request.hosts)) {
    return InvalidArgument(fmt::format(
        "{}: {} needs several hosts, of which one has several ranks{}", name,
        Name(request.algorithm), HasRoot(request.collective) ? "" : ", or several sites"));
  }
  if (request.group < 0) {
    return InvalidArgument(fmt::format("{}: group is {}", name, request.group));
  }
  if (request.side_phases > kMostSidePhases) {
    return InvalidArgument(
        fmt::format("{}: {} side phases, at most {}", name, request.side_phases, kMostSidePhases));
  }
  if (request.side_phases > 0 && SidePhaseOf(request) == nullptr) {
    return InvalidArgument(fmt::format("{}: there is no side phase{}", name,
                                       request.side_one_shot ? " in one shot" : ""));
  }
  return Status::Ok();
}

// With one rank every result is the input.
void Alone(PhaseBuilder* phase) {
  for (int channel = 0; channel < phase->channels(); ++channel) {
    phase->AddStep(phase->AddStrand(channel), 0, {phase->Input()}, {phase->Output()});
  }
}

// The chunks for which a strand has steps; for a side strand, those that it writes to its output.
std::vector<bool> ChunksOf(const Schedule& schedule, const Strand& strand) {
  const Phase& phase = schedule.phases[strand.phase];
  std::vector<bool> chunks(phase.chunks);
  for (const Step& step : strand.steps) {
    bool counts = phase.lane_class == LaneClass::kData;
    for (uint32_t i = 0; i < step.outputs && !counts; ++i) {
      counts = schedule.operands[step.first_operand + step.inputs + i].space == Space::kOutput;
    }
    if (counts) chunks[schedule.operands[step.first_operand].chunk] = true;
  }
  return chunks;
}

bool Meet(const std::vector<bool>& a, const std::vector<bool>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] && b[i]) return true;
  }
  return false;
}

// Data of a window waits for the side information of that window, all of it or that of its own
// segments, and a side phase for all of the ones before it; side information runs at most one
// window ahead of the data.
void CouplePhases(Schedule* schedule) {
  const bool segmented = SegmentsOf(schedule->collective, 2) > 1;
  const size_t data = schedule->phases.size() - 1;
  std::vector<std::vector<bool>> chunks;
  for (const Strand& strand : schedule->strands) chunks.push_back(ChunksOf(*schedule, strand));
  for (size_t s = 0; s < schedule->strands.size(); ++s) {
    Strand& strand = schedule->strands[s];
    for (size_t i = 0; i < schedule->strands.size(); ++i) {
      const size_t other = schedule->strands[i].phase;
      if (strand.phase == other) continue;
      const bool all = !segmented || strand.phase != data;
      if (other == data) {
        strand.waits.push_back({static_cast<uint16_t>(i), kSideWindows});
      } else if (other < strand.phase &&
                 (all ? Meet(chunks[i], chunks[i]) : Meet(chunks[s], chunks[i]))) {
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

bool HasSchedule(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts) {
  return nranks >= 1 && nranks <= MostRanks(collective) && HasSchedules(collective, algorithm) &&
         (!TraitsOf(algorithm).several_hosts || HasTwoLevels(collective, hosts));
}

bool HasSchedules(Collective collective, Algorithm algorithm) {
  return Find(collective, algorithm) != nullptr;
}

Result<Schedule> MakeSchedule(const ScheduleRequest& request) {
  if (Status status = CheckRequest(request); !status.ok()) return status;
  Schedule schedule;
  schedule.collective = request.collective;
  schedule.algorithm = request.algorithm;
  schedule.nranks = request.nranks;
  schedule.rank = request.rank;
  schedule.root = request.root;
  schedule.group = HasGroups(request) ? request.group : 0;
  const bool alone = request.nranks == 1;
  const HostMap* const hosts =
      request.hosts != nullptr && request.hosts->hosts() > 1 ? request.hosts : nullptr;
  std::optional<HostMap> groups;
  if (hosts != nullptr && TraitsOf(request.algorithm).several_hosts) groups = hosts->Groups();
  const HostMap* const map = groups ? &*groups : hosts;
  for (size_t p = 0; p < request.side_phases; ++p) {
    PhaseBuilder side(&schedule, LaneClass::kSide, 1, map);
    (alone ? Alone : SidePhaseOf(request))(&side);
  }
  PhaseBuilder data(&schedule, LaneClass::kData, request.channels, map);
  (alone ? Alone : DataPhaseOf(request))(&data);
  if (request.side_phases > 0) CouplePhases(&schedule);
  if (Status status = CheckSizes(schedule); !status.ok()) return status;
  return schedule;
}

const char* Name(LaneClass lane_class) {
  switch (lane_class) {
    case LaneClass::kData: return "data";
    case LaneClass::kSide: return "side";
    case LaneClass::kSendRecv: return "send_recv";
  }
  return "unknown";
}

std::string Text(const Format& format) {
  switch (format.form) {
    case Form::kInput: return "input";
    case Form::kOutput: return "output";
    case Form::kSum: return fmt::format("sum({})", format.contributions);
    case Form::kResult: return "result";
    case Form::kSide: return "side";
  }
  return "unknown";
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += fmt::format("{}", ranks[i]);
    if (last > i) text += fmt::format("{}{}", last > i + 1 ? "-" : ",", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string Text(const ScheduleLane& lane) {
  return fmt::format("{}/{} {} -> {}", Name(lane.lane_class), lane.channel, lane.producer,
                     RankList(lane.consumers));
}

std::string Title(const Schedule& schedule) {
  return fmt::format("{} {}, {} {}", Name(schedule.collective), Name(schedule.algorithm),
                     schedule.nranks, schedule.nranks == 1 ? "rank" : "ranks");
}

std::string Place(int rank, size_t strand, size_t step) {
  return fmt::format("rank {} strand {} step {}", rank, strand, step);
}

}  // namespace inccl
