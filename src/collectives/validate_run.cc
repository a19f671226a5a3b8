// SPDX-License-Identifier: Apache-2.0
#include "collectives/validate_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/schedule.h"

namespace inccl {

SymbolicRun::SymbolicRun(std::span<const Schedule> schedules, const SharedLanes& table, int windows,
                         const HostMap* hosts)
    : schedules_(schedules),
      table_(table),
      windows_(windows),
      hosts_(hosts),
      expressions_(static_cast<int>(schedules.size())),
      causality_(schedules),
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
      StrandState state;
      state.rank = static_cast<size_t>(schedule.rank);
      state.strand = s;
      strands_.push_back(state);
    }
    for (const Strand& strand : schedule.strands) {
      for (const Dependency& wait : strand.waits) {
        if (wait.lag == 0) strands_[strand_base_.back() + wait.strand].awaited = true;
      }
    }
    scratch_.emplace_back(schedule.scratch_slots);
    written_.emplace_back(cells, 0);
  }
}

Result<Proof> SymbolicRun::Run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (StrandState& state : strands_) {
      while (state.window < windows_ && !Why(state, nullptr)) {
        if (Status status = Execute(&state); !status.ok()) return status;
        moved = true;
      }
    }
  }
  for (const StrandState& state : strands_) {
    if (state.window < windows_) return Deadlock(state);
  }
  if (Status status = CheckEnd(); !status.ok()) return status;
  return proof_;
}

bool SymbolicRun::Why(const StrandState& state, Blocked* blocked) const {
  if (state.step == 0) {
    const int window = state.window;
    for (const Dependency& wait : strand(state).waits) {
      const size_t other = strand_base_[state.rank] + wait.strand;
      if (strands_[other].window + wait.lag > window) continue;
      if (blocked != nullptr) {
        *blocked = {fmt::format("strand {} to finish window {}", wait.strand, window - wait.lag),
                    other};
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
      *blocked = {
          fmt::format("{} lane {}", inputs ? "a slice on" : "a free slot of", Text(*shared.lane)),
          strand_base_[static_cast<size_t>(rank)] + static_cast<size_t>(strand)};
      return true;
    }
  }
  return false;
}

Status SymbolicRun::Execute(StrandState* state) {
  parts_.clear();
  if (state->step == 0) {
    state->messages = state->crossings = 0;
    for (const Dependency& wait : strand(*state).waits) {
      if (wait.lag > 0) continue;
      const StrandState& other = strands_[strand_base_[state->rank] + wait.strand];
      state->messages = std::max(state->messages, other.row_messages);
      state->crossings = std::max(state->crossings, other.row_crossings);
      causality_.Learn(Index(*state), other.window_ends[static_cast<size_t>(state->window)]);
    }
  }
  for (const Operand& operand : Operands(*state, true)) {
    Value value;
    if (Status status = Read(*state, operand, &value); !status.ok()) return status;
    parts_.push_back(value.expression);
    if (operand.space != Space::kLane) continue;
    Count(state, operand, value);
    const LaneEnd& end = End(*state, operand);
    LaneState& lane = lanes_[static_cast<size_t>(end.shared)];
    lane.reads[static_cast<size_t>(end.consumer)] = false;
    --lane.unread;
    causality_.Learn(Index(*state), lane.known);
  }
  const StepClock& known = causality_.Tick(Index(*state));
  const int expression = expressions_.Fold(parts_);
  for (const Operand& operand : Operands(*state, false)) {
    if (Status status = Check(*state, operand, expression); !status.ok()) return status;
    const Value value = {state->window,   strand(*state).phase, strand(*state).channel,
                         operand.chunk,   operand.format,       expression,
                         state->messages, state->crossings,     static_cast<uint32_t>(state->step)};
    if (operand.space == Space::kLane) {
      LaneState& lane = lanes_[static_cast<size_t>(End(*state, operand).shared)];
      lane.value = value;
      lane.known = known;
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

void SymbolicRun::Count(StrandState* state, const Operand& operand, const Value& value) {
  state->messages = std::max(state->messages, value.messages + 1);
  const Schedule& self = schedule(*state);
  const bool crosses =
      hosts_ != nullptr && !hosts_->SameHost(self.lanes[operand.index].producer, self.rank);
  state->crossings = std::max(state->crossings, value.crossings + (crosses ? 1 : 0));
  const Phase& phase = self.phases[strand(*state).phase];
  if (!crosses || state->window != 0 || phase.lane_class != LaneClass::kData) return;
  ++proof_.crossing_messages;
  proof_.crossing_shares += 1.0 / (phase.chunks * phase.channels);
}

void SymbolicRun::Advance(StrandState* state) {
  if (++state->step < strand(*state).steps.size()) return;
  if (state->window == 0) {
    state->row_messages = state->messages;
    state->row_crossings = state->crossings;
    proof_.steps = std::max(proof_.steps, state->messages);
    proof_.crossing_steps = std::max(proof_.crossing_steps, state->crossings);
  }
  if (state->awaited) state->window_ends.push_back(causality_.of(Index(*state)));
  state->step = 0;
  ++state->window;
}

Status SymbolicRun::Deadlock(const StrandState& first) const {
  constexpr size_t kShown = 8;
  std::string text = "deadlock with one slot per lane";
  std::vector<bool> seen(strands_.size());
  size_t at = Index(first);
  for (size_t links = 0;; ++links) {
    const StrandState& state = strands_[at];
    if (state.window == windows_) {
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

Result<Proof> RunSymbolically(std::span<const Schedule> schedules, const SharedLanes& table,
                              int windows, const HostMap* hosts) {
  return SymbolicRun(schedules, table, windows, hosts).Run();
}

}  // namespace inccl
