// SPDX-License-Identifier: Apache-2.0
//
// The rules for one schedule, and the lanes that the schedules of a communicator share.
#include "verify/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"
#include "verify/symbolic_run.h"

namespace inccl {

namespace {

class StructureCheck {
 public:
  explicit StructureCheck(const Schedule& schedule) : schedule_(schedule) {}

  Status Run() {
    if (Status status = Phases(); !status.ok()) return status;
    for (size_t i = 0; i < schedule_.lanes.size(); ++i) {
      if (Status status = Lane(schedule_.lanes[i], i); !status.ok()) return status;
    }
    scratch_strand_.assign(schedule_.scratch_slots, -1);
    for (size_t i = 0; i < schedule_.strands.size(); ++i) {
      if (Status status = StrandAt(i); !status.ok()) return status;
    }
    return Coupling();
  }

 private:
  Status Error(const std::string& what) const {
    return InternalError(fmt::format("rank {}: {}", schedule_.rank, what));
  }
  Status StepError(size_t strand, size_t step, const std::string& what) const {
    return InternalError(fmt::format("{}: {}", Place(schedule_.rank, strand, step), what));
  }
  bool IsRank(int rank) const { return rank >= 0 && rank < schedule_.nranks; }

  Status Phases() const {
    const std::vector<Phase>& phases = schedule_.phases;
    if (!IsRank(schedule_.root)) return Error(fmt::format("root is {}", schedule_.root));
    const bool known =
        phases.size() == 1 || (phases.size() <= 1 + kMostSidePhases && HasSidePhase());
    for (size_t p = 0; p < phases.size(); ++p) {
      const bool last = p + 1 == phases.size();
      if (known && phases[p].lane_class == (last ? LaneClass::kData : LaneClass::kSide)) continue;
      return Error("the phases are not [side information, [more of it,]] data");
    }
    if (phases.empty()) return Error("there is no phase");
    const uint64_t segments =
        SegmentsOf(schedule_.collective, static_cast<uint64_t>(schedule_.nranks));
    for (const Phase& phase : phases) {
      if (phase.chunks < 1 || phase.channels < 1 || phase.channels > kMaxChannels) {
        return Error(
            fmt::format("a phase has {} chunks and {} channels", phase.chunks, phase.channels));
      }
      if (Segmented() && phase.chunks != segments) {
        return Error(fmt::format("{} chunks, but {} segments", phase.chunks, segments));
      }
    }
    return Status::Ok();
  }

  bool HasSidePhase() const {
    return schedule_.collective == Collective::kAllReduce ||
           schedule_.collective == Collective::kReduceScatter ||
           schedule_.collective == Collective::kAllGather;
  }

  // Whether chunks are segments, each with its own side information.
  bool Segmented() const { return SegmentsOf(schedule_.collective, 2) > 1; }

  Status Lane(const ScheduleLane& lane, size_t index) const {
    bool ok = IsRank(lane.producer) && !lane.consumers.empty();
    bool mine = lane.producer == schedule_.rank;
    int previous = -1;
    for (int consumer : lane.consumers) {
      ok = ok && IsRank(consumer) && consumer > previous && consumer != lane.producer;
      mine = mine || consumer == schedule_.rank;
      previous = consumer;
    }
    if (!ok) return Error(fmt::format("lane {} ({}) has impossible ends", index, Text(lane)));
    if (!mine) return Error(fmt::format("lane {} ({}) does not end here", index, Text(lane)));
    return Status::Ok();
  }

  Status StrandAt(size_t index) {
    const Strand& strand = schedule_.strands[index];
    if (strand.phase >= schedule_.phases.size() ||
        strand.channel >= schedule_.phases[strand.phase].channels) {
      return Error(fmt::format("strand {} is of phase {} channel {}, which do not exist", index,
                               strand.phase, strand.channel));
    }
    if (strand.steps.empty()) return Error(fmt::format("strand {} has no steps", index));
    for (const Dependency& wait : strand.waits) {
      if (wait.strand >= schedule_.strands.size()) {
        return Error(
            fmt::format("strand {} waits for strand {}, which does not exist", index, wait.strand));
      }
      // Otherwise slots and windows depend on each other: a strand with several groups of slices
      // per window may need the one that waits for its end.
      if (wait.lag == 0 && schedule_.strands[wait.strand].phase >= strand.phase) {
        return Error(fmt::format(
            "strand {} waits in the same window for strand {}, which is not of an earlier phase",
            index, wait.strand));
      }
    }
    for (size_t step = 0; step < strand.steps.size(); ++step) {
      if (Status status = StepAt(index, step); !status.ok()) return status;
    }
    return Status::Ok();
  }

  Status StepAt(size_t strand, size_t index) {
    const Step& step = schedule_.strands[strand].steps[index];
    const size_t count = size_t{step.inputs} + step.outputs;
    if (step.inputs == 0 || step.outputs == 0) {
      return StepError(strand, index,
                       fmt::format("{} inputs and {} outputs", step.inputs, step.outputs));
    }
    if (step.first_operand > schedule_.operands.size() ||
        count > schedule_.operands.size() - step.first_operand) {
      return StepError(strand, index, "its operands do not exist");
    }
    const std::span<const Operand> operands(&schedule_.operands[step.first_operand], count);
    for (size_t i = 0; i < count; ++i) {
      const std::string what = OperandFault(strand, operands[i], i < step.inputs);
      if (!what.empty()) return StepError(strand, index, what);
      if (operands[i].chunk != operands[0].chunk) {
        return StepError(
            strand, index,
            fmt::format("operands of chunks {} and {}", operands[0].chunk, operands[i].chunk));
      }
      if (step.inputs > 1 && i < step.inputs && operands[i].format.form == Form::kResult) {
        return StepError(strand, index, "a result is folded with something else");
      }
    }
    return NothingTwice(strand, index, operands);
  }

  // Describes what is wrong with an operand; "" if it is valid.
  std::string OperandFault(size_t strand, const Operand& operand, bool is_input) {
    const Phase& phase = schedule_.phases[schedule_.strands[strand].phase];
    if (operand.chunk >= phase.chunks) {
      return fmt::format("chunk {} of {}", operand.chunk, phase.chunks);
    }
    const bool side = phase.lane_class == LaneClass::kSide;
    const Format& format = operand.format;
    bool form_fits = side ? format.form == Form::kSide
                          : format.form == Form::kSum || format.form == Form::kResult;
    switch (operand.space) {
      case Space::kInput:
        if (!is_input) return "the input is written";
        form_fits = format.form == Form::kInput;
        break;
      case Space::kOutput:
        if (is_input) return "the output is read";
        form_fits = format.form == (side ? Form::kSide : Form::kOutput);
        break;
      case Space::kLane:
        if (std::string what = LaneFault(operand, phase, is_input); !what.empty()) return what;
        break;
      case Space::kScratch: {
        if (operand.index >= schedule_.scratch_slots) {
          return fmt::format("scratch slot {} of {}", operand.index, schedule_.scratch_slots);
        }
        int& owner = scratch_strand_[operand.index];
        if (owner >= 0 && owner != static_cast<int>(strand)) {
          return fmt::format("scratch slot {} is used by strands {} and {}", operand.index, owner,
                             strand);
        }
        owner = static_cast<int>(strand);
        break;
      }
    }
    if (!form_fits) return fmt::format("form {} does not fit there", Text(format));
    if (format.form == Form::kSide && format.contributions != schedule_.strands[strand].phase) {
      return fmt::format("side information of phase {} does not fit there", format.contributions);
    }
    if (format.form == Form::kSide) return "";
    const bool counted = format.form == Form::kSum;
    if (counted ? format.contributions < 1 || format.contributions > schedule_.nranks
                : format.contributions != 0) {
      return fmt::format("{} with {} contributions", counted ? "a sum" : "no sum, but",
                         format.contributions);
    }
    return "";
  }

  std::string LaneFault(const Operand& operand, const Phase& phase, bool is_input) const {
    if (operand.index >= schedule_.lanes.size()) {
      return fmt::format("lane {} of {}", operand.index, schedule_.lanes.size());
    }
    const ScheduleLane& lane = schedule_.lanes[operand.index];
    if (lane.lane_class != phase.lane_class) {
      return fmt::format("lane {} in a phase of {} lanes", Text(lane), Name(phase.lane_class));
    }
    if (is_input && lane.producer == schedule_.rank) {
      return fmt::format("it reads lane {}, which this rank produces", Text(lane));
    }
    if (!is_input && lane.producer != schedule_.rank) {
      return fmt::format("it writes lane {}, which this rank consumes", Text(lane));
    }
    return "";
  }

  Status NothingTwice(size_t strand, size_t step, std::span<const Operand> operands) {
    seen_.clear();
    for (const Operand& operand : operands) {
      seen_.push_back(static_cast<uint32_t>(operand.space) << 16 | operand.index);
    }
    std::sort(seen_.begin(), seen_.end());
    const auto twice = std::adjacent_find(seen_.begin(), seen_.end());
    if (twice == seen_.end()) return Status::Ok();
    static constexpr const char* kSpaces[] = {"lane", "input", "output", "scratch slot"};
    return StepError(
        strand, step,
        fmt::format("{} {} stands twice in it", kSpaces[*twice >> 16], *twice & 0xffff));
  }

  // Data waits for the side information of its window and segments, which runs at most kSideWindows
  // ahead. A second side phase waits for all of the first.
  Status Coupling() const {
    if (schedule_.phases.size() == 1) return Status::Ok();
    const size_t last = schedule_.phases.size() - 1;
    for (size_t data = 0; data < schedule_.strands.size(); ++data) {
      const size_t phase = schedule_.strands[data].phase;
      if (phase == 0) continue;
      const std::set<int> touched = Chunks(schedule_.strands[data], false);
      for (size_t side = 0; side < schedule_.strands.size(); ++side) {
        if (schedule_.strands[side].phase >= phase) continue;
        const std::set<int> written = Chunks(schedule_.strands[side], true);
        if (written.empty()) continue;
        const bool needed = !Segmented() || phase != last ||
                            std::any_of(written.begin(), written.end(),
                                        [&](int chunk) { return touched.count(chunk) > 0; });
        if (needed && !Waits(data, side, 0)) {
          return Error(
              fmt::format("{} strand {} does not wait for the side strand {} of its window",
                          phase == last ? "data" : "side", data, side));
        }
        if (phase == last && !Waits(side, data, kSideWindows)) {
          return Error(fmt::format("side strand {} may overtake the data strand {} by {} windows",
                                   side, data, kSideWindows));
        }
      }
    }
    return Status::Ok();
  }

  bool Waits(size_t strand, size_t other, int most) const {
    const std::vector<Dependency>& waits = schedule_.strands[strand].waits;
    return std::any_of(waits.begin(), waits.end(), [&](const Dependency& wait) {
      return wait.strand == other && wait.lag <= most;
    });
  }

  // The chunks that a strand's operands name, or only those that it writes to the output.
  std::set<int> Chunks(const Strand& strand, bool written) const {
    std::set<int> chunks;
    for (const Step& step : strand.steps) {
      for (uint32_t i = 0; i < uint32_t{step.inputs} + step.outputs; ++i) {
        const Operand& operand = schedule_.operands[step.first_operand + i];
        if (!written || operand.space == Space::kOutput) chunks.insert(operand.chunk);
      }
    }
    return chunks;
  }

  const Schedule& schedule_;
  std::vector<int> scratch_strand_;  // the strand that uses a slot, or -1
  std::vector<uint32_t> seen_;
};

}  // namespace

Status CheckStructure(const Schedule& schedule) { return StructureCheck(schedule).Run(); }

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

Causality::Causality(std::span<const Schedule> schedules)
    : schedules_(schedules), segmented_(SegmentsOf(schedules[0].collective, 2) > 1) {
  size_t strands = 0;
  for (const Schedule& schedule : schedules) {
    base_.push_back(strands);
    strands += schedule.strands.size();
    const Phase& data = schedule.phases.back();
    side_readers_.emplace_back(segmented_ ? data.chunks : 1);
    data_readers_.emplace_back(size_t{data.chunks} * data.channels);
    for (size_t i = 0; i < schedule.strands.size(); ++i) {
      const Strand& strand = schedule.strands[i];
      const bool side = schedule.phases[strand.phase].lane_class == LaneClass::kSide;
      for (size_t s = 0; s < strand.steps.size(); ++s) {
        const Step& step = strand.steps[s];
        for (const Operand& input :
             std::span(schedule.operands).subspan(step.first_operand, step.inputs)) {
          if (input.space != Space::kInput) continue;
          const size_t cell = size_t{input.chunk} * data.channels + strand.channel;
          std::vector<Reader>& readers = side ? side_readers_.back()[segmented_ ? input.chunk : 0]
                                              : data_readers_.back()[cell];
          readers.push_back({i, s});
        }
      }
    }
  }
  clocks_.assign(strands, StepClock(strands, 0));
}

void Causality::Learn(size_t strand, const StepClock& known) {
  StepClock& clock = clocks_[strand];
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], known[i]);
}

const StepClock& Causality::Tick(size_t strand) {
  ++clocks_[strand][strand];
  return clocks_[strand];
}

std::string Causality::LateReader(size_t rank, size_t strand, size_t step, int window,
                                  int chunk) const {
  const Schedule& schedule = schedules_[rank];
  const size_t cell = static_cast<size_t>(chunk) * schedule.phases.back().channels +
                      schedule.strands[strand].channel;
  std::string late = Late(data_readers_[rank][cell], rank, strand, step, window);
  if (!late.empty()) return late;
  const size_t segment = segmented_ ? static_cast<size_t>(chunk) : 0;
  return Late(side_readers_[rank][segment], rank, strand, step, window);
}

std::string Causality::Late(const std::vector<Reader>& readers, size_t rank, size_t strand,
                            size_t step, int window) const {
  const StepClock& clock = clocks_[base_[rank] + strand];
  for (const Reader& reader : readers) {
    // This step reads and writes element by element.
    if (reader.strand == strand && reader.step == step) continue;
    const size_t steps = schedules_[rank].strands[reader.strand].steps.size();
    const size_t through = static_cast<size_t>(window) * steps + reader.step + 1;
    if (clock[base_[rank] + reader.strand] < through) {
      return fmt::format("strand {} step {}", reader.strand, reader.step);
    }
  }
  return "";
}

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
