// SPDX-License-Identifier: Apache-2.0
//
// The checks of values in the symbolic run.
#include <fmt/format.h>

#include "collectives/schedule.h"
#include "collectives/validate_run.h"

namespace inccl {

std::string SymbolicRun::ValueText(const Value& value) {
  return fmt::format("chunk {} channel {} of window {} as {}", value.chunk, value.channel,
                     value.window, Text(value.format));
}

std::string SymbolicRun::At(const StrandState& state) const {
  return fmt::format("{} window {}", Place(static_cast<int>(state.rank), state.strand, state.step),
                     state.window);
}

Status SymbolicRun::Error(const StrandState& state, const std::string& what) const {
  return InternalError(fmt::format("{}: {}", At(state), what));
}

Status SymbolicRun::Read(const StrandState& state, const Operand& operand, Value* value) const {
  const Schedule& self = schedule(state);
  if (operand.space == Space::kInput) {
    if (!HasInput(self, operand.chunk)) {
      return Error(state, fmt::format("this rank has no input for chunk {}", operand.chunk));
    }
    value->expression = expressions_.Leaf(self.rank);
    return Status::Ok();
  }
  const Value expected = {.window = state.window,
                          .phase = strand(state).phase,
                          .channel = strand(state).channel,
                          .chunk = operand.chunk,
                          .format = operand.format};
  std::string source;
  if (operand.space == Space::kScratch) {
    *value = scratch_[state.rank][operand.index];
    source = fmt::format("scratch slot {}", operand.index);
    if (value->window != state.window) {
      return Error(state, source + " is read before it is written in this window");
    }
  } else {
    const size_t shared = static_cast<size_t>(End(state, operand).shared);
    *value = lanes_[shared].value;
    source = fmt::format("lane {} (step {} of its producer)", Text(*table_.lanes[shared].lane),
                         value->step);
  }
  if (value->window == expected.window && value->phase == expected.phase &&
      value->channel == expected.channel && value->chunk == expected.chunk &&
      value->format == expected.format) {
    return Status::Ok();
  }
  return Error(state, fmt::format("it expects {}, but {} brings {}", ValueText(expected), source,
                                  ValueText(*value)));
}

Status SymbolicRun::Check(const StrandState& state, const Operand& output, int expression) const {
  const Collective collective = schedule(state).collective;
  const Form form = output.format.form;
  const bool side = form == Form::kSide;
  if (side && output.space != Space::kOutput) return Status::Ok();
  if (!Reduces(collective)) {
    const int source = SourceOf(schedule(state), output.chunk);
    if (form == Form::kSum) return Error(state, "a sum where nothing is reduced");
    if (expression == expressions_.Leaf(source)) return Status::Ok();
    return Error(state, fmt::format("chunk {} is {}, not the input of rank {}", output.chunk,
                                    expressions_.Text(expression), source));
  }
  if (const int twice = expressions_.Repeated(expression); twice >= 0 && !side) {
    return Error(state,
                 fmt::format("rank {} is there twice in {}", twice, expressions_.Text(expression)));
  }
  if (form == Form::kSum) {
    const int count = expressions_.contributions(expression);
    if (count == output.format.contributions) return Status::Ok();
    return Error(state,
                 fmt::format("it declares {} contributions, but {} has {}",
                             output.format.contributions, expressions_.Text(expression), count));
  }
  if (expressions_.Complete(expression)) return Status::Ok();
  int missing = 0;
  while (expressions_.Contains(expression, missing)) ++missing;
  return Error(state,
               fmt::format("rank {} is missing in the {} {} of chunk {}", missing,
                           Text(output.format), expressions_.Text(expression), output.chunk));
}

Status SymbolicRun::WriteOutput(const StrandState& state, const Operand& output, int expression) {
  const Schedule& self = schedule(state);
  const Strand& s = strand(state);
  if (!HasOutput(self, self.phases[s.phase], output.chunk)) {
    return Error(state, fmt::format("this rank has no output for chunk {}", output.chunk));
  }
  const size_t cell =
      cell_base_[s.phase] + size_t{output.chunk} * self.phases[s.phase].channels + s.channel;
  if (written_[state.rank][cell] != state.window) {
    return Error(
        state, fmt::format("output chunk {} channel {} is written twice", output.chunk, s.channel));
  }
  ++written_[state.rank][cell];
  if (output.format.form == Form::kSide) return Status::Ok();
  if (const std::string late =
          causality_.LateReader(state.rank, state.strand, state.step, state.window, output.chunk);
      !late.empty()) {
    return Error(state, fmt::format("in place, output chunk {} channel {} may be written before {} "
                                    "reads the input",
                                    output.chunk, s.channel, late));
  }
  if (!Reduces(self.collective)) return Status::Ok();
  proof_.rank_order = proof_.rank_order && expressions_.InRankOrder(expression);
  auto& [agreed, whose] = agreed_[cell];
  if (agreed < 0) agreed_[cell] = {expression, self.rank};
  if (agreed == expression) return Status::Ok();
  return Error(state, fmt::format("chunk {} is {} here, but {} at rank {}", output.chunk,
                                  expressions_.Text(expression), expressions_.Text(agreed), whose));
}

Status SymbolicRun::CheckEnd() const {
  for (const Schedule& self : schedules_) {
    const size_t rank = static_cast<size_t>(self.rank);
    for (size_t p = 0; p < self.phases.size(); ++p) {
      const Phase& phase = self.phases[p];
      for (uint32_t chunk = 0; chunk < phase.chunks; ++chunk) {
        for (size_t channel = 0; channel < phase.channels; ++channel) {
          const size_t cell = cell_base_[p] + size_t{chunk} * phase.channels + channel;
          if (!HasOutput(self, phase, chunk) || written_[rank][cell] == windows_) continue;
          return InternalError(
              fmt::format("rank {}: nothing writes output chunk {} channel {} of phase {}", rank,
                          chunk, channel, p));
        }
      }
    }
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].unread == 0) continue;
    const SharedLane& shared = table_.lanes[i];
    return InternalError(
        fmt::format("{}: lane {} still holds {} at the end",
                    Place(shared.lane->producer, static_cast<size_t>(shared.producer_strand),
                          lanes_[i].value.step),
                    Text(*shared.lane), ValueText(lanes_[i].value)));
  }
  return Status::Ok();
}

}  // namespace inccl
