// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/fold_expressions.h"
#include "collectives/schedule_text.h"
#include "collectives/validate_parts.h"

namespace inccl {
namespace {

// What a slot holds.
struct Value {
  int row = -1;
  uint8_t phase = 0;
  uint8_t channel = 0;
  uint16_t chunk = 0;
  Format format;
  int expression = 0;
  int messages = 0;   // on the longest chain of steps that led here, within the row
  uint32_t step = 0;  // that wrote it
};

std::string Text(const Value& value) {
  return fmt::format("chunk {} channel {} of row {} as {}", value.chunk, value.channel, value.row,
                     Text(value.format));
}

struct LaneState {
  Value value;
  size_t unread = 0;        // consumers that have not released the slot
  std::vector<bool> reads;  // by consumer: still to be read
};

struct StrandState {
  size_t rank = 0, strand = 0;
  int row = 0;
  size_t step = 0;
  int messages = 0;
  int row_messages = 0;  // at the end of the first row
};

// Why a strand cannot go on.
struct Blocked {
  std::string by;
  size_t strand = 0;  // whose turn it is, into strands_
};

class SymbolicRun {
 public:
  SymbolicRun(std::span<const Schedule> schedules, const LaneTable& table, int rows)
      : schedules_(schedules),
        table_(table),
        rows_(rows),
        expressions_(static_cast<int>(schedules.size())),
        lanes_(table.lanes.size()) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].reads.resize(table.lanes[i].lane->consumers.size());
    }
    size_t cells = 0;
    for (const Phase& phase : schedules[0].phases) {
      cell_base_.push_back(cells);
      cells += size_t{phase.chunks} * phase.channels;
    }
    agreed_.assign(cells, {-1, -1});
    for (const Schedule& schedule : schedules) {
      strand_base_.push_back(strands_.size());
      for (size_t s = 0; s < schedule.strands.size(); ++s) {
        strands_.push_back({static_cast<size_t>(schedule.rank), s});
      }
      scratch_.emplace_back(schedule.scratch_slots);
      written_.emplace_back(cells, 0);
    }
  }

  Result<Proof> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (StrandState& state : strands_) {
        while (state.row < rows_ && !Why(state, nullptr)) {
          if (Status status = Execute(&state); !status.ok()) return status;
          moved = true;
        }
      }
    }
    for (const StrandState& state : strands_) {
      if (state.row < rows_) return Deadlock(state);
    }
    if (Status status = CheckEnd(); !status.ok()) return status;
    return proof_;
  }

 private:
  const Schedule& schedule(const StrandState& state) const { return schedules_[state.rank]; }
  const Strand& strand(const StrandState& state) const {
    return schedule(state).strands[state.strand];
  }
  const Step& step(const StrandState& state) const { return strand(state).steps[state.step]; }
  std::span<const Operand> Operands(const StrandState& state, bool inputs) const {
    const Step& s = step(state);
    return std::span(schedule(state).operands)
        .subspan(s.first_operand + (inputs ? 0u : s.inputs), inputs ? s.inputs : s.outputs);
  }
  const LaneEnd& End(const StrandState& state, const Operand& operand) const {
    return table_.ends[state.rank][operand.index];
  }
  std::string At(const StrandState& state) const {
    return fmt::format("{} row {}", Place(static_cast<int>(state.rank), state.strand, state.step),
                       state.row);
  }
  Status Error(const StrandState& state, const std::string& what) const {
    return InternalError(fmt::format("{}: {}", At(state), what));
  }

  bool Why(const StrandState& state, Blocked* blocked) const;
  Status Execute(StrandState* state);
  Status Read(const StrandState& state, const Operand& operand, Value* value) const;
  Status Check(const StrandState& state, const Operand& output, int expression) const;
  Status WriteOutput(const StrandState& state, const Operand& output, int expression);
  void Advance(StrandState* state);
  Status Deadlock(const StrandState& first) const;
  Status CheckEnd() const;

  std::span<const Schedule> schedules_;
  const LaneTable& table_;
  const int rows_;
  FoldExpressions expressions_;
  Proof proof_{true, 0};
  std::vector<StrandState> strands_;  // of all ranks
  std::vector<size_t> strand_base_;   // by rank, into strands_
  std::vector<LaneState> lanes_;
  std::vector<std::vector<Value>> scratch_;  // by rank
  std::vector<size_t> cell_base_;            // by phase: its first cell; cells are chunk x channel
  std::vector<std::vector<int>> written_;    // by rank and cell: rows written
  std::vector<std::pair<int, int>> agreed_;  // by cell: the expression of all ranks, and of whom
  std::vector<int> parts_;                   // of the fold at hand
};

// Whether the strand must wait, and for what.
bool SymbolicRun::Why(const StrandState& state, Blocked* blocked) const {
  if (state.step == 0) {
    const int row = state.row;
    for (const Dependency& wait : strand(state).waits) {
      const size_t other = strand_base_[state.rank] + wait.strand;
      if (strands_[other].row + wait.lag > row) continue;
      if (blocked != nullptr) {
        *blocked = {fmt::format("strand {} to finish row {}", wait.strand, row - wait.lag), other};
      }
      return true;
    }
  }
  for (const bool inputs : {true, false}) {
    for (const Operand& operand : Operands(state, inputs)) {
      if (operand.space != Space::kLane) continue;
      const LaneEnd& end = End(state, operand);
      const LaneState& lane = lanes_[static_cast<size_t>(end.shared)];
      const bool go = inputs ? lane.reads[static_cast<size_t>(end.consumer)] : lane.unread == 0;
      if (go) continue;
      if (blocked == nullptr) return true;
      const SharedLane& shared = table_.lanes[static_cast<size_t>(end.shared)];
      int rank = shared.lane->producer, strand = shared.producer_strand;
      if (!inputs) {
        const size_t reader = static_cast<size_t>(
            std::find(lane.reads.begin(), lane.reads.end(), true) - lane.reads.begin());
        rank = shared.lane->consumers[reader];
        strand = shared.consumer_strands[reader];
      }
      *blocked = {fmt::format("{} lane {}", inputs ? "a slice on" : "a free slot of",
                              inccl::Text(*shared.lane)),
                  strand_base_[static_cast<size_t>(rank)] + static_cast<size_t>(strand)};
      return true;
    }
  }
  return false;
}

Status SymbolicRun::Execute(StrandState* state) {
  parts_.clear();
  if (state->step == 0) {
    state->messages = 0;
    for (const Dependency& wait : strand(*state).waits) {
      if (wait.lag > 0) continue;
      const StrandState& other = strands_[strand_base_[state->rank] + wait.strand];
      state->messages = std::max(state->messages, other.row_messages);
    }
  }
  for (const Operand& operand : Operands(*state, true)) {
    Value value;
    if (Status status = Read(*state, operand, &value); !status.ok()) return status;
    parts_.push_back(value.expression);
    if (operand.space != Space::kLane) continue;
    state->messages = std::max(state->messages, value.messages + 1);
    const LaneEnd& end = End(*state, operand);
    LaneState& lane = lanes_[static_cast<size_t>(end.shared)];
    lane.reads[static_cast<size_t>(end.consumer)] = false;
    --lane.unread;
  }
  const int expression = expressions_.Fold(parts_);
  for (const Operand& operand : Operands(*state, false)) {
    if (Status status = Check(*state, operand, expression); !status.ok()) return status;
    const Value value = {state->row,
                         strand(*state).phase,
                         strand(*state).channel,
                         operand.chunk,
                         operand.format,
                         expression,
                         state->messages,
                         static_cast<uint32_t>(state->step)};
    if (operand.space == Space::kLane) {
      LaneState& lane = lanes_[static_cast<size_t>(End(*state, operand).shared)];
      lane.value = value;
      lane.unread = lane.reads.size();
      lane.reads.assign(lane.reads.size(), true);
    } else if (operand.space == Space::kScratch) {
      scratch_[state->rank][operand.index] = value;
    } else if (Status status = WriteOutput(*state, operand, expression); !status.ok()) {
      return status;
    }
  }
  Advance(state);
  return Status::Ok();
}

// The value of an input, which must be what the step expects.
Status SymbolicRun::Read(const StrandState& state, const Operand& operand, Value* value) const {
  const Schedule& self = schedule(state);
  if (operand.space == Space::kInput) {
    if (!HasInput(self, operand.chunk)) {
      return Error(state, fmt::format("this rank has no input for chunk {}", operand.chunk));
    }
    value->expression = expressions_.Leaf(self.rank);
    return Status::Ok();
  }
  const Value expected = {
      state.row, strand(state).phase, strand(state).channel, operand.chunk, operand.format, 0, 0,
      0};
  std::string source;
  if (operand.space == Space::kScratch) {
    *value = scratch_[state.rank][operand.index];
    source = fmt::format("scratch slot {}", operand.index);
    if (value->row != state.row) {
      return Error(state, source + " is read before it is written in this row");
    }
  } else {
    const size_t shared = static_cast<size_t>(End(state, operand).shared);
    *value = lanes_[shared].value;
    source = fmt::format("lane {} (step {} of its producer)", Text(*table_.lanes[shared].lane),
                         value->step);
  }
  if (value->row == expected.row && value->phase == expected.phase &&
      value->channel == expected.channel && value->chunk == expected.chunk &&
      value->format == expected.format) {
    return Status::Ok();
  }
  return Error(
      state, fmt::format("it expects {}, but {} brings {}", Text(expected), source, Text(*value)));
}

// An output must hold what its format says.
Status SymbolicRun::Check(const StrandState& state, const Operand& output, int expression) const {
  const Collective collective = schedule(state).collective;
  const Form form = output.format.form;
  const bool side = form == Form::kSide;
  if (side && output.space != Space::kOutput) return Status::Ok();
  if (!Reduces(collective)) {
    const int source =
        collective == Collective::kAllGather ? int{output.chunk} : schedule(state).root;
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
  if (!HasOutput(self, output.chunk)) {
    return Error(state, fmt::format("this rank has no output for chunk {}", output.chunk));
  }
  const size_t cell =
      cell_base_[s.phase] + size_t{output.chunk} * self.phases[s.phase].channels + s.channel;
  if (written_[state.rank][cell] != state.row) {
    return Error(
        state, fmt::format("output chunk {} channel {} is written twice", output.chunk, s.channel));
  }
  ++written_[state.rank][cell];
  if (output.format.form == Form::kSide || !Reduces(self.collective)) return Status::Ok();
  proof_.rank_order = proof_.rank_order && expressions_.InRankOrder(expression);
  auto& [agreed, whose] = agreed_[cell];
  if (agreed < 0) agreed_[cell] = {expression, self.rank};
  if (agreed == expression) return Status::Ok();
  return Error(state, fmt::format("chunk {} is {} here, but {} at rank {}", output.chunk,
                                  expressions_.Text(expression), expressions_.Text(agreed), whose));
}

void SymbolicRun::Advance(StrandState* state) {
  if (++state->step < strand(*state).steps.size()) return;
  if (state->row == 0) {
    state->row_messages = state->messages;
    proof_.steps = std::max(proof_.steps, state->messages);
  }
  state->step = 0;
  ++state->row;
}

// Follows who waits for whom from a strand that does not go on.
Status SymbolicRun::Deadlock(const StrandState& first) const {
  constexpr size_t kShown = 8;
  std::string text = "deadlock with one slot per lane";
  std::vector<bool> seen(strands_.size());
  size_t at = static_cast<size_t>(&first - strands_.data());
  for (size_t links = 0;; ++links) {
    const StrandState& state = strands_[at];
    if (state.row == rows_) {
      text += fmt::format("; rank {} strand {} has ended", state.rank, state.strand);
      break;
    }
    if (seen[at]) {
      text += fmt::format("; round to rank {} strand {}", state.rank, state.strand);
      break;
    }
    seen[at] = true;
    Blocked blocked;
    Why(state, &blocked);
    if (links < kShown) {
      text += fmt::format("{} {} waits for {}", links == 0 ? ":" : ";", At(state), blocked.by);
    }
    if (links == kShown) text += "; ...";
    at = blocked.strand;
  }
  return InternalError(text);
}

// Every output is there, and every lane is empty.
Status SymbolicRun::CheckEnd() const {
  for (const Schedule& self : schedules_) {
    const size_t rank = static_cast<size_t>(self.rank);
    for (size_t p = 0; p < self.phases.size(); ++p) {
      const Phase& phase = self.phases[p];
      for (int chunk = 0; chunk < phase.chunks; ++chunk) {
        for (size_t channel = 0; channel < phase.channels; ++channel) {
          const size_t cell = cell_base_[p] + static_cast<size_t>(chunk) * phase.channels + channel;
          if (!HasOutput(self, chunk) || written_[rank][cell] == rows_) continue;
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
                    inccl::Text(*shared.lane), Text(lanes_[i].value)));
  }
  return Status::Ok();
}

}  // namespace

Result<Proof> RunSymbolically(std::span<const Schedule> schedules, const LaneTable& table,
                              int rows) {
  return SymbolicRun(schedules, table, rows).Run();
}

}  // namespace inccl
