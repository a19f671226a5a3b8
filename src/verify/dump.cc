// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "collectives/schedule.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using LaneKey = std::pair<int, std::string>;  // producer, text

std::span<const Operand> Inputs(const Schedule& schedule, const Step& step) {
  return std::span(schedule.operands).subspan(step.first_operand, step.inputs);
}

std::span<const Operand> Outputs(const Schedule& schedule, const Step& step) {
  return std::span(schedule.operands).subspan(step.first_operand + step.inputs, step.outputs);
}

bool Has(std::span<const Operand> operands, Space space) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Operand& operand) { return operand.space == space; });
}

// NCCL's names, and "keep" for a step that writes to scratch. For NCCL a plain receive is not a
// "copy".
std::string StepName(const Schedule& schedule, const Step& step) {
  const bool recv = Has(Inputs(schedule, step), Space::kLane);
  const bool send = Has(Outputs(schedule, step), Space::kLane);
  const bool reduce = step.inputs > 1;
  std::string name;
  auto add = [&](bool when, const char* word) {
    if (when) name += name.empty() ? word : fmt::format("-{}", word);
  };
  add(recv, "recv");
  add(reduce, "reduce");
  add(Has(Outputs(schedule, step), Space::kOutput) && (!recv || reduce || send), "copy");
  add(Has(Outputs(schedule, step), Space::kScratch), "keep");
  add(send, "send");
  return name;
}

// The ranks from which a step receives or to which it sends.
std::string Peers(const Schedule& schedule, std::span<const Operand> operands) {
  std::set<int> peers;
  for (const Operand& operand : operands) {
    if (operand.space != Space::kLane) continue;
    const ScheduleLane& lane = schedule.lanes[operand.index];
    if (lane.producer != schedule.rank) {
      peers.insert(lane.producer);
    } else {
      peers.insert(lane.consumers.begin(), lane.consumers.end());
    }
  }
  return peers.empty() ? "-" : RankList({peers.begin(), peers.end()});
}

std::string OperandText(const Operand& operand) {
  const std::string format = Text(operand.format);
  switch (operand.space) {
    case Space::kLane: return fmt::format("L{} {}", operand.index, format);
    case Space::kInput: return "input";
    case Space::kOutput: return operand.format.form == Form::kSide ? "output side" : "output";
    case Space::kScratch: return fmt::format("S{} {}", operand.index, format);
  }
  return "unknown";
}

std::string Join(std::span<const Operand> operands, const char* separator) {
  std::string text;
  for (const Operand& operand : operands) {
    if (!text.empty()) text += separator;
    text += OperandText(operand);
  }
  return text;
}

std::string StrandTitle(const Schedule& schedule, size_t index) {
  const Strand& strand = schedule.strands[index];
  std::string text =
      fmt::format("strand {}: phase {}, channel {}", index, strand.phase, strand.channel);
  std::map<uint16_t, std::vector<int>> waits;  // by lag
  for (const Dependency& wait : strand.waits) waits[wait.lag].push_back(wait.strand);
  for (const auto& [lag, strands] : waits) {
    text += fmt::format("; window r waits for window {} of strand {}",
                        lag == 0 ? "r" : fmt::format("r-{}", lag), RankList(strands));
  }
  return text;
}

// One box per rank, one node per step; dotted lines link the steps of a strand.
std::string DotRank(const Schedule& schedule) {
  std::string dot = fmt::format("  subgraph cluster_{} {{\n    label=\"rank {}\";\n", schedule.rank,
                                schedule.rank);
  for (size_t i = 0; i < schedule.strands.size(); ++i) {
    const Strand& strand = schedule.strands[i];
    for (size_t s = 0; s < strand.steps.size(); ++s) {
      const Step& step = strand.steps[s];
      dot += fmt::format("    r{}s{}t{} [label=\"{}\\nchunk {}\"];\n", schedule.rank, i, s,
                         StepName(schedule, step), schedule.operands[step.first_operand].chunk);
    }
    for (size_t s = 1; s < strand.steps.size(); ++s) {
      dot += fmt::format("    r{0}s{1}t{2} -> r{0}s{1}t{3} [style=dotted, arrowhead=none];\n",
                         schedule.rank, i, s - 1, s);
    }
    for (const Dependency& wait : strand.waits) {
      const size_t last = schedule.strands[wait.strand].steps.size() - 1;
      const std::string how =
          wait.lag == 0 ? "label=\"same window\""
                        : fmt::format("label=\"window - {}\", constraint=false", wait.lag);
      dot += fmt::format("    r{0}s{1}t{2} -> r{0}s{3}t0 [style=dashed, {4}];\n", schedule.rank,
                         wait.strand, last, i, how);
    }
  }
  return dot + "  }\n";
}

// The slices that pass one end of a lane in one window, in order: node and format.
using Passes = std::vector<std::pair<std::string, std::string>>;

// Passes of the lanes that a rank writes or reads.
std::map<LaneKey, Passes> PassesOf(const Schedule& schedule, bool written) {
  std::map<LaneKey, Passes> passes;
  for (size_t i = 0; i < schedule.strands.size(); ++i) {
    const std::vector<Step>& steps = schedule.strands[i].steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto operands = written ? Outputs(schedule, steps[s]) : Inputs(schedule, steps[s]);
      for (const Operand& operand : operands) {
        if (operand.space != Space::kLane) continue;
        const ScheduleLane& lane = schedule.lanes[operand.index];
        passes[{lane.producer, Text(lane)}].emplace_back(
            fmt::format("r{}s{}t{}", schedule.rank, i, s), Text(operand.format));
      }
    }
  }
  return passes;
}

}  // namespace

std::string DumpText(const Schedule& schedule) {
  std::string text = fmt::format("{}: rank {}", Title(schedule), schedule.rank);
  if (HasRoot(schedule.collective)) {
    text += fmt::format(", root {}", schedule.root);
  }
  text += "\n";
  for (size_t p = 0; p < schedule.phases.size(); ++p) {
    const Phase& phase = schedule.phases[p];
    text += fmt::format("phase {}: {}, chunks {}, channels {}\n", p, Name(phase.lane_class),
                        phase.chunks, phase.channels);
  }
  for (size_t i = 0; i < schedule.lanes.size(); ++i) {
    text += fmt::format("L{}: {}\n", i, Text(schedule.lanes[i]));
  }
  if (schedule.scratch_slots > 0) text += fmt::format("scratch: {}\n", schedule.scratch_slots);
  for (size_t i = 0; i < schedule.strands.size(); ++i) {
    text += StrandTitle(schedule, i) + "\n";
    text += "  step  name                   chunk  from     to       outputs <- fold(inputs)\n";
    const std::vector<Step>& steps = schedule.strands[i].steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto inputs = Inputs(schedule, steps[s]), outputs = Outputs(schedule, steps[s]);
      text += fmt::format("  {:>4}  {:<21}  {:>5}  {:<7}  {:<7}  {} <- {}\n", s,
                          StepName(schedule, steps[s]), inputs[0].chunk, Peers(schedule, inputs),
                          Peers(schedule, outputs), Join(outputs, ", "), Join(inputs, " + "));
    }
  }
  return text;
}

std::string DumpDot(std::span<const Schedule> schedules) {
  std::string dot = "digraph schedule {\n  rankdir=LR;\n  node [shape=box];\n";
  if (!schedules.empty()) dot += fmt::format("  label=\"{}\";\n", Title(schedules[0]));
  std::map<LaneKey, Passes> written;
  for (const Schedule& schedule : schedules) {
    dot += DotRank(schedule);
    written.merge(PassesOf(schedule, true));
  }
  for (const Schedule& schedule : schedules) {
    for (const auto& [key, reads] : PassesOf(schedule, false)) {
      const Passes& writes = written[key];
      for (size_t i = 0; i < std::min(reads.size(), writes.size()); ++i) {
        dot += fmt::format("  {} -> {} [label=\"{}\"];\n", writes[i].first, reads[i].first,
                           writes[i].second);
      }
    }
  }
  return dot + "}\n";
}

}  // namespace inccl
