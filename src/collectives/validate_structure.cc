// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "collectives/schedule.h"
#include "collectives/validate_parts.h"

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

}  // namespace inccl
