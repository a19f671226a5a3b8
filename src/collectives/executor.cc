// SPDX-License-Identifier: Apache-2.0
#include "collectives/executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/fault_point.h"

namespace inccl {
namespace {

// Names a slice within its call; both ends compute it from their own place.
uint32_t Tag(uint64_t row, uint32_t chunk, uint32_t slice) {
  return static_cast<uint32_t>(row * 1048583 + chunk * 8209 + slice);
}

}  // namespace

void Task::Start(const TaskCall& call) {
  call_ = call;
  stats_ = {};
  mismatched_peer_ = -1;
  const std::vector<BoundStrand>& strands = call.program->strands;
  if (strands_.size() < strands.size()) strands_.resize(strands.size());
  unfinished_ = strands.size();
  for (size_t i = 0; i < strands.size(); ++i) {
    StrandState& state = strands_[i];
    state.row = 0;
    state.group = state.groups = 0;
    state.step = 0;
    state.slice = state.slice_end = 0;
    state.placed = state.finished = false;
    state.ticket = 0;
    state.blocked = {};
    state.terms.reserve(call.program->max_operands);
    if (call.chunking.rows() == 0) {
      state.finished = true;
      --unfinished_;
    }
  }
}

bool Task::Place(const BoundStrand& strand, StrandState* state) {
  const Chunking& chunking = call_.chunking;
  const uint32_t group_size = chunking.Group(strand.phase);
  while (true) {
    if (state->groups == 0) {
      if (state->row == chunking.rows()) return false;
      // Chunk 0 is never smaller than another one.
      const Range part = chunking.Part(state->row, strand.phase, 0, strand.channel);
      state->groups =
          std::max(1u, (chunking.Slices(part, strand.phase) + group_size - 1) / group_size);
    }
    while (state->step < strand.steps.size()) {
      const BoundStep& step = strand.steps[state->step];
      state->part = chunking.Part(state->row, strand.phase, step.chunk, strand.channel);
      const uint32_t slices = chunking.Slices(state->part, strand.phase);
      state->slice = state->group * group_size;
      state->slice_end = std::min(slices, state->slice + group_size);
      if (state->slice < state->slice_end) {
        state->placed = true;
        return true;
      }
      ++state->step;
    }
    state->step = 0;
    if (++state->group == state->groups) {
      state->group = state->groups = 0;
      ++state->row;
    }
  }
}

bool Task::WaitsDone(const BoundStrand& strand, const StrandState& state) const {
  return std::all_of(strand.waits.begin(), strand.waits.end(), [&](const Dependency& wait) {
    const StrandState& other = strands_[wait.strand];
    return other.finished || other.row + wait.lag > state.row;
  });
}

Task::ScratchSlot& Task::Scratch(const BoundStrand& strand, StrandState* state, uint16_t slot) {
  const uint32_t group = call_.chunking.Group(strand.phase);
  const size_t need = size_t{call_.program->schedule.scratch_slots} * group;
  if (state->scratch.size() < need) state->scratch.resize(need);
  ScratchSlot& scratch = state->scratch[size_t{slot} * group + state->slice % group];
  for (std::vector<std::byte>& half : scratch.half) {
    if (half.size() < call_.program->slots.data_bytes) half.resize(call_.program->slots.data_bytes);
  }
  return scratch;
}

Result<bool> Task::FillTerms(const BoundStrand& strand, const BoundStep& step, const Range& range,
                             uint32_t tag, StrandState* state) {
  const BoundOperand* operands = strand.operands.data() + step.first;
  const auto raw_bytes = static_cast<uint32_t>(range.count * call_.element_bytes);
  state->raw_bytes = raw_bytes;
  state->terms.clear();
  for (uint32_t i = 0; i < uint32_t{step.inputs} + step.outputs; ++i) {
    const BoundOperand& operand = operands[i];
    const bool is_input = i < step.inputs;
    Term term{.format = operand.format, .data = nullptr, .bytes = raw_bytes};
    if (operand.space == Space::kLane && is_input) {
      RecvLane::Incoming incoming;
      Result<bool> there = operand.recv->TryPeek(&incoming);
      if (!there.ok()) return there.status();
      if (*there && incoming.header.signature != call_.signature) {
        mismatched_peer_ = operand.peer;
        there = false;
      }
      if (!*there) {
        state->blocked = {Blocked::On::kSlice, operand.peer,
                          static_cast<uint16_t>(state - strands_.data()), state->step, state->row};
        return false;
      }
      if (incoming.header.slice != tag) {
        return InternalError(fmt::format("slice {:#x} from rank {} where {:#x} was due",
                                         incoming.header.slice, operand.peer, tag));
      }
      term.data = const_cast<std::byte*>(incoming.payload);
      term.bytes = incoming.header.bytes;
    } else if (operand.space == Space::kLane) {
      Result<Span> slot = operand.send->TryAcquire();
      if (!slot.ok()) return slot.status();
      if (slot->data == nullptr) {
        state->blocked = {Blocked::On::kCredit, operand.peer,
                          static_cast<uint16_t>(state - strands_.data()), state->step, state->row};
        return false;
      }
      term.data = slot->data;
      term.bytes = static_cast<uint32_t>(slot->bytes);
    } else if (operand.space == Space::kInput) {
      term.data = const_cast<std::byte*>(call_.input) +
                  call_.chunking.InputOffset(range) * call_.element_bytes;
    } else if (operand.space == Space::kScratch) {
      ScratchSlot& scratch = Scratch(strand, state, operand.scratch);
      term.data = scratch.half[is_input ? scratch.current : 1 - scratch.current].data();
      term.bytes = is_input ? scratch.bytes : call_.program->slots.data_bytes;
    } else if (operand.format.form == Form::kOutput) {
      term.data = call_.output + call_.chunking.OutputOffset(range) * call_.element_bytes;
    }
    state->terms.push_back(term);
  }
  return true;
}

Status Task::Complete(const BoundStrand& strand, const BoundStep& step, uint32_t tag,
                      StrandState* state) {
  const BoundOperand* operands = strand.operands.data() + step.first;
  for (uint32_t i = 0; i < uint32_t{step.inputs} + step.outputs; ++i) {
    const BoundOperand& operand = operands[i];
    if (operand.space == Space::kScratch && i >= step.inputs) {
      ScratchSlot& scratch = Scratch(strand, state, operand.scratch);
      scratch.bytes = state->terms[i].bytes;
      scratch.current ^= 1;
    }
    if (operand.space != Space::kLane) continue;
    if (i < step.inputs) {
      FAULT_POINT("executor.before_release");
      if (Status status = operand.recv->Release(); !status.ok()) return status;
      continue;
    }
    const uint32_t bytes = state->terms[i].bytes;
    FAULT_POINT("executor.before_publish");
    Status status =
        operand.send->Publish({.bytes = bytes, .slice = tag, .signature = call_.signature});
    if (!status.ok()) return status;
    FAULT_POINT("executor.after_publish");
    stats_.payload_bytes += uint64_t{bytes} * operand.receivers;
    stats_.slices += operand.receivers;
    if (strand.phase.lane_class == LaneClass::kData) {
      stats_.raw_bytes += state->raw_bytes * operand.receivers;
    }
  }
  state->ticket = 0;
  state->blocked = {};
  if (++state->slice == state->slice_end) {
    ++state->step;
    state->placed = false;
  }
  return Status::Ok();
}

Result<bool> Task::RunSlice(const BoundStrand& strand, StrandState* state) {
  if (!state->placed && !Place(strand, state)) {
    state->finished = true;
    --unfinished_;
    return true;
  }
  const BoundStep& step = strand.steps[state->step];
  const uint32_t tag = Tag(state->row, step.chunk, state->slice);
  if (state->ticket != 0) {
    Result<bool> finished = engine_->Done(state->ticket);
    if (!finished.ok() || !*finished) return finished;
  } else {
    if (!WaitsDone(strand, *state)) {
      state->blocked = {Blocked::On::kStrand, -1, static_cast<uint16_t>(state - strands_.data()),
                        state->step, state->row};
      return false;
    }
    const Range range = call_.chunking.Slice(state->part, strand.phase, state->slice);
    Result<bool> ready = FillTerms(strand, step, range, tag, state);
    if (!ready.ok() || !*ready) return ready;
    FAULT_POINT("executor.before_step");
    const std::span<Term> terms(state->terms);
    Result<Ticket> ticket =
        engine_->Combine(call_.codec, range, terms.first(step.inputs), terms.subspan(step.inputs));
    if (!ticket.ok()) return ticket.status();
    state->ticket = *ticket;
    if (*ticket != 0) return true;
  }
  if (Status status = Complete(strand, step, tag, state); !status.ok()) return status;
  return true;
}

Result<int> Task::Advance(int budget) {
  int ran = 0;
  const std::vector<BoundStrand>& strands = call_.program->strands;
  for (size_t i = 0; i < strands.size(); ++i) {
    StrandState& state = strands_[i];
    while (!state.finished && ran < budget) {
      Result<bool> progressed = RunSlice(strands[i], &state);
      if (!progressed.ok()) return progressed.status();
      if (!*progressed) break;
      ++ran;
    }
  }
  return ran;
}

Blocked Task::blocked_on() const {
  for (size_t i = 0; i < call_.program->strands.size(); ++i) {
    if (!strands_[i].finished && strands_[i].blocked.on != Blocked::On::kNothing &&
        strands_[i].blocked.on != Blocked::On::kStrand) {
      return strands_[i].blocked;
    }
  }
  return {};
}

}  // namespace inccl
