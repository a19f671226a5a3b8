// SPDX-License-Identifier: Apache-2.0
#include "collectives/executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/fault_point.h"

namespace inccl {
namespace {

// Identifies a slice within its call; both ends of a lane compute it independently.
uint32_t Tag(uint64_t window, uint32_t chunk, uint32_t slice) {
  return static_cast<uint32_t>(window * 1048583 + chunk * 8209 + slice);
}

// The first consumer that holds the next slot of a lane, or (`everything`) any slot; -1: none.
int FirstHolder(const SendLane& lane, bool everything) {
  std::vector<int> holders;
  lane.AppendHolders(everything, &holders);
  return holders.empty() ? -1 : holders.front();
}

}  // namespace

void Executor::Start(const RequestArgs& call) {
  call_ = call;
  element_bytes_ = SizeOf(call.chunking.options().type);
  engine_ = call.engine != nullptr ? call.engine : own_engine_;
  open_completions_ = 0;
  stats_ = {};
  mismatched_peer_ = -1;
  zero_copy_lanes_.clear();
  const std::vector<BoundStrand>& strands = call.program->strands;
  if (strands_.size() < strands.size()) strands_.resize(strands.size());
  unfinished_ = strands.size();
  for (size_t i = 0; i < strands.size(); ++i) {
    StrandState& state = strands_[i];
    state.window = 0;
    state.group = state.groups = 0;
    state.step = 0;
    state.slice = state.slice_end = 0;
    state.placed = state.finished = false;
    state.completion = 0;
    state.blocked = {};
    const auto ranks = static_cast<size_t>(call.program->schedule.nranks);
    state.terms.reserve(call.program->max_operands + ranks);
    state.outgoing.reserve(call.program->max_operands);
    state.targets.reserve(ranks);
    if (call.chunking.windows() == 0) {
      state.finished = true;
      --unfinished_;
    }
  }
}

bool Executor::Place(const BoundStrand& strand, StrandState* state) {
  const Chunking& chunking = call_.chunking;
  const uint32_t group_size = chunking.Group(strand.phase);
  while (true) {
    if (state->groups == 0) {
      if (state->window == chunking.windows()) return false;
      // Chunk 0 is the largest.
      const Range part = chunking.Part(state->window, strand.phase, 0, strand.channel);
      state->groups =
          std::max(1u, (chunking.Slices(part, strand.phase) + group_size - 1) / group_size);
    }
    while (state->step < strand.steps.size()) {
      const BoundStep& step = strand.steps[state->step];
      state->part = chunking.Part(state->window, strand.phase, step.chunk, strand.channel);
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
      ++state->window;
    }
  }
}

bool Executor::WaitsDone(const BoundStrand& strand, const StrandState& state) const {
  return std::all_of(strand.waits.begin(), strand.waits.end(), [&](const Dependency& wait) {
    const StrandState& other = strands_[wait.strand];
    return other.finished || other.window + wait.lag > state.window;
  });
}

Executor::ScratchSlot& Executor::Scratch(const BoundStrand& strand, StrandState* state,
                                         uint16_t slot) {
  const uint32_t group = call_.chunking.Group(strand.phase);
  const size_t need = size_t{call_.program->schedule.scratch_slots} * group;
  if (state->scratch.size() < need) state->scratch.resize(need);
  ScratchSlot& scratch = state->scratch[size_t{slot} * group + state->slice % group];
  for (std::vector<std::byte>& half : scratch.half) {
    if (half.size() < call_.program->slots.data_bytes) half.resize(call_.program->slots.data_bytes);
  }
  return scratch;
}

Result<bool> Executor::FillTerms(const BoundStrand& strand, const BoundStep& step,
                                 const Range& range, uint32_t tag, StrandState* state) {
  const BoundOperand* operands = strand.operands.data() + step.first;
  state->raw_bytes = range.count * element_bytes_;
  state->terms.clear();
  state->outgoing.clear();
  state->targets.clear();
  state->delivered = false;
  for (uint32_t i = 0; i < step.inputs; ++i) {
    Result<bool> ready = FillInput(strand, operands[i], range, tag, state);
    if (!ready.ok() || !*ready) return ready;
  }
  state->inputs = step.inputs;
  for (uint32_t i = 0; i < step.outputs; ++i) {
    Result<bool> ready = FillOutput(strand, step, operands[step.inputs + i], range, state);
    if (!ready.ok() || !*ready) return ready;
  }
  return true;
}

Result<bool> Executor::FillInput(const BoundStrand& strand, const BoundOperand& operand,
                                 const Range& range, uint32_t tag, StrandState* state) {
  Term term{
      .format = operand.format, .data = nullptr, .bytes = static_cast<uint32_t>(state->raw_bytes)};
  if (operand.space == Space::kLane) {
    RecvLane::Incoming incoming;
    Result<bool> there = operand.recv->TryPeek(&incoming);
    if (!there.ok()) return there.status();
    if (*there && incoming.header.signature != call_.signature) {
      mismatched_peer_ = operand.peer;
      there = false;
    }
    if (!*there) {
      state->blocked = {Blocked::On::kSlice, operand.peer,
                        static_cast<uint16_t>(state - strands_.data()), state->step, state->window};
      return false;
    }
    if (incoming.header.slice != tag) {
      return InternalError(fmt::format("rank {}: expected slice {:#x}, got {:#x}", operand.peer,
                                       tag, incoming.header.slice));
    }
    term.data = const_cast<std::byte*>(incoming.payload);
    term.bytes = incoming.header.bytes;
    // The payload is the peer's input; or in its registered buffer: its input, or its part of the
    // result.
    if ((incoming.header.source.region != 0 || incoming.header.is_input) &&
        term.format.form == Form::kSum) {
      if (term.bytes != state->raw_bytes) {
        return InternalError(fmt::format("rank {}: expected {} bytes of its input, got {}",
                                         operand.peer, state->raw_bytes, term.bytes));
      }
      term.format = {Form::kInput, 0};
    }
    if (incoming.target != nullptr && term.bytes == state->raw_bytes) {
      state->targets.push_back({operand.peer, incoming.target});
    }
    if (incoming.header.delivered != 0) {
      const int place = operand.recv->spec().PlaceOf(call_.program->schedule.rank);
      state->delivered = place < 64 && (incoming.header.delivered >> place & 1) != 0;
    }
  } else if (operand.space == Space::kInput) {
    term.data = const_cast<std::byte*>(InputAt(range));
  } else if (operand.space == Space::kScratch) {
    ScratchSlot& scratch = Scratch(strand, state, operand.scratch);
    term.data = scratch.half[scratch.current].data();
    term.bytes = scratch.bytes;
  }
  state->terms.push_back(term);
  return true;
}

Result<bool> Executor::FillOutput(const BoundStrand& strand, const BoundStep& step,
                                  const BoundOperand& operand, const Range& range,
                                  StrandState* state) {
  Term term{
      .format = operand.format, .data = nullptr, .bytes = static_cast<uint32_t>(state->raw_bytes)};
  Outgoing outgoing;
  if (operand.space == Space::kLane) {
    Result<Span> slot = operand.send->TryAcquire();
    if (!slot.ok()) return slot.status();
    if (slot->data == nullptr) {
      state->blocked = {Blocked::On::kCredit,
                        -1,
                        static_cast<uint16_t>(state - strands_.data()),
                        state->step,
                        state->window,
                        operand.send};
      return false;
    }
    term.data = slot->data;
    term.bytes = static_cast<uint32_t>(slot->bytes);
    UseZeroCopy(strand, step, operand, range, state, &outgoing);
    bool written = outgoing.header.source.region != 0 || Deliver(operand, state, &outgoing);
    if (!written) {
      outgoing.payload = SentFrom(strand, step, operand, range, *state, &outgoing.header);
      written = outgoing.payload != nullptr;
    }
    if (written) {
      outgoing.header.bytes = static_cast<uint32_t>(state->raw_bytes);
      state->outgoing.push_back(outgoing);
      return true;
    }
  } else if (operand.space == Space::kScratch) {
    ScratchSlot& scratch = Scratch(strand, state, operand.scratch);
    term.data = scratch.half[1 - scratch.current].data();
    term.bytes = call_.program->slots.data_bytes;
  } else if (operand.format.form == Form::kOutput) {
    term.data = OutputAt(range);
  }
  if (state->delivered) {
    if (operand.format.form != Form::kOutput) {
      return InternalError("a result that was delivered is to be passed on");
    }
    state->outgoing.push_back(outgoing);
    return true;
  }
  outgoing.term = static_cast<int>(state->terms.size());
  state->terms.push_back(term);
  state->outgoing.push_back(outgoing);
  return true;
}

Status Executor::Complete(const BoundStrand& strand, const BoundStep& step, uint32_t tag,
                          StrandState* state) {
  const BoundOperand* operands = strand.operands.data() + step.first;
  for (uint32_t i = 0; i < step.inputs; ++i) {
    if (operands[i].space != Space::kLane) continue;
    FAULT_POINT("executor.before_release");
    if (Status status = operands[i].recv->Release(); !status.ok()) return status;
  }
  for (uint32_t i = 0; i < step.outputs; ++i) {
    const BoundOperand& operand = operands[step.inputs + i];
    Outgoing& outgoing = state->outgoing[i];
    if (operand.space == Space::kScratch) {
      ScratchSlot& scratch = Scratch(strand, state, operand.scratch);
      scratch.bytes = state->terms[static_cast<size_t>(outgoing.term)].bytes;
      scratch.current ^= 1;
    }
    if (operand.space != Space::kLane) continue;
    SliceHeader& header = outgoing.header;
    if (outgoing.term >= 0) header.bytes = state->terms[static_cast<size_t>(outgoing.term)].bytes;
    header.slice = tag;
    header.signature = call_.signature;
    if ((header.source.region != 0 || call_.until_read) &&
        std::find(zero_copy_lanes_.begin(), zero_copy_lanes_.end(), operand.send) ==
            zero_copy_lanes_.end()) {
      zero_copy_lanes_.push_back(operand.send);
    }
    FAULT_POINT("executor.before_publish");
    Status published = outgoing.payload == nullptr
                           ? operand.send->Publish(header)
                           : operand.send->PublishFrom(header, outgoing.payload, call_.on_device);
    if (!published.ok()) return published;
    FAULT_POINT("executor.after_publish");
    if (header.source.region != 0) {
      FAULT_POINT("zero_copy.after_publish");
    }
    if (header.delivered != 0) {
      FAULT_POINT("zero_copy.after_delivery");
    }
    stats_.payload_bytes += uint64_t{header.bytes} * operand.receivers;
    stats_.slices += operand.receivers;
    if (strand.phase.lane_class == LaneClass::kData) {
      stats_.raw_bytes += state->raw_bytes * operand.receivers;
    }
  }
  state->completion = 0;
  state->blocked = {};
  if (++state->slice == state->slice_end) {
    ++state->step;
    state->placed = false;
  }
  return Status::Ok();
}

Result<bool> Executor::RunSlice(const BoundStrand& strand, StrandState* state) {
  if (!state->placed && !Place(strand, state)) {
    state->finished = true;
    --unfinished_;
    return true;
  }
  const BoundStep& step = strand.steps[state->step];
  const uint32_t tag = Tag(state->window, step.chunk, state->slice);
  if (state->completion != 0) {
    Result<bool> finished = engine_->Done(state->completion);
    if (!finished.ok() || !*finished) return finished;
    --open_completions_;
  } else {
    if (!WaitsDone(strand, *state)) {
      state->blocked = {Blocked::On::kStrand, -1, static_cast<uint16_t>(state - strands_.data()),
                        state->step, state->window};
      return false;
    }
    const Range range = call_.chunking.Slice(state->part, strand.phase, state->slice);
    Result<bool> ready = FillTerms(strand, step, range, tag, state);
    if (!ready.ok() || !*ready) return ready;
    FAULT_POINT("executor.before_step");
    const std::span<Term> terms(state->terms);
    if (terms.size() > state->inputs) {
      Result<CompletionId> completion = engine_->Combine(
          call_.codec, range, terms.first(state->inputs), terms.subspan(state->inputs));
      if (!completion.ok()) return completion.status();
      state->completion = *completion;
      if (*completion != 0) {
        ++open_completions_;
        state->blocked = {Blocked::On::kCompletion, -1,
                          static_cast<uint16_t>(state - strands_.data()), state->step,
                          state->window};
        return true;
      }
    }
  }
  if (Status status = Complete(strand, step, tag, state); !status.ok()) return status;
  return true;
}

Status Executor::RunStrand(const BoundStrand& strand, int budget, StrandState* state, int* ran) {
  while (!state->finished && *ran < budget) {
    Result<bool> progressed = RunSlice(strand, state);
    if (!progressed.ok()) return progressed.status();
    if (!*progressed) break;
    ++*ran;
    if (call_.turns && !state->placed) break;
  }
  return Status::Ok();
}

Result<int> Executor::Advance(int budget) {
  int ran = 0, before = 0;
  const std::vector<BoundStrand>& strands = call_.program->strands;
  do {
    before = ran;
    for (size_t i = 0; i < strands.size(); ++i) {
      if (Status status = RunStrand(strands[i], budget, &strands_[i], &ran); !status.ok()) {
        return status;
      }
    }
  } while (call_.turns && ran > before && ran < budget);
  if (unfinished_ == 0 && !zero_copy_lanes_.empty()) {
    if (Status status = AwaitReaders(); !status.ok()) return status;
  }
  return ran;
}

Blocked Executor::blocked_on() const {
  if (unfinished_ == 0 && !zero_copy_lanes_.empty()) {
    const SendLane* const lane = zero_copy_lanes_.back();
    return {.on = Blocked::On::kCredit, .peer = FirstHolder(*lane, true), .lane = lane};
  }
  for (size_t i = 0; i < call_.program->strands.size(); ++i) {
    if (!strands_[i].finished && strands_[i].blocked.on != Blocked::On::kNothing &&
        strands_[i].blocked.on != Blocked::On::kStrand) {
      Blocked blocked = strands_[i].blocked;
      if (blocked.lane != nullptr) blocked.peer = FirstHolder(*blocked.lane, false);
      return blocked;
    }
  }
  return {};
}

void Executor::AppendAwaited(std::vector<int>* peers) const {
  if (unfinished_ == 0) {
    // AwaitReaders has checked only the last lane.
    if (!zero_copy_lanes_.empty()) zero_copy_lanes_.back()->AppendHolders(true, peers);
    return;
  }
  for (size_t i = 0; i < call_.program->strands.size(); ++i) {
    const StrandState& state = strands_[i];
    if (state.finished) continue;
    if (state.blocked.on == Blocked::On::kSlice) {
      peers->push_back(state.blocked.peer);
    } else if (state.blocked.on == Blocked::On::kCredit) {
      state.blocked.lane->AppendHolders(false, peers);
    }
  }
}

// How a step uses registered buffers: consumers or devices read payloads in place, and a rank
// writes results into the outputs of its peers.

namespace {

// The producer writes its result into the outputs of at most this many consumers, the first ones of
// the lane; the others read the slot. This bounds the outputs of one step, and the header has a bit
// for each consumer.
constexpr size_t kMostDelivered = 32;

}  // namespace

// True if the step also writes the result into this rank's own output.
bool Executor::KeepsResult(const BoundStrand& strand, const BoundStep& step) {
  const BoundOperand* const outputs = strand.operands.data() + step.first + step.inputs;
  return std::any_of(outputs, outputs + step.outputs, [](const BoundOperand& output) {
    return output.format.form == Form::kOutput;
  });
}

void Executor::UseZeroCopy(const BoundStrand& strand, const BoundStep& step,
                           const BoundOperand& operand, const Range& range, StrandState* state,
                           Outgoing* outgoing) {
  if (strand.phase.lane_class != LaneClass::kData) return;
  if (call_.registered_result.region != 0 && operand.format.form == Form::kResult &&
      call_.codec->ResultIsPayload() && KeepsResult(strand, step)) {
    const RemoteAddress source = call_.registered_result.At(OutputAt(range), state->raw_bytes);
    if (source.region != 0 && operand.send->ReachableFrom(source.region)) {
      outgoing->header.source = source;
    }
    return;
  }
  if ((call_.registered_input.region | call_.registered_output.region) == 0 || step.inputs != 1 ||
      strand.operands[step.first].space != Space::kInput) {
    return;
  }
  if (call_.codec->InputsAreAlike()) {
    const RemoteAddress source = call_.registered_input.At(InputAt(range), state->raw_bytes);
    if (source.region != 0 && operand.send->ReachableFrom(source.region)) {
      outgoing->header.source = source;
    }
  }
  // Only in these schedules does the consumer of a part compute its result. In hierarchical ones
  // some consumers send a sum on instead, and ignore the target.
  const Schedule& schedule = call_.program->schedule;
  if (schedule.collective == Collective::kAllReduce && TraitsOf(schedule.algorithm).zero_copy &&
      call_.codec->ResultIsPayload()) {
    const RemoteAddress target = call_.registered_output.At(OutputAt(range), state->raw_bytes);
    if (target.region != 0 && operand.send->ReachableFrom(target.region)) {
      outgoing->header.target = target;
    }
  }
}

// Writes the result to the lane's consumers that have named a target, as far as kMostDelivered
// admits; returns true if no consumer is left. The consumers of the step's other lanes get it
// there.
bool Executor::Deliver(const BoundOperand& operand, StrandState* state, Outgoing* outgoing) {
  if (state->targets.empty() || operand.format.form != Form::kResult) return false;
  const size_t consumers = operand.send->spec().consumers.size();
  size_t delivered = 0;
  for (const Target& target : state->targets) {
    const auto place = static_cast<size_t>(operand.send->spec().PlaceOf(target.peer));
    if (place >= std::min(consumers, kMostDelivered)) continue;
    ++delivered;
    outgoing->header.delivered |= uint64_t{1} << place;
    state->terms.push_back({.format = {Form::kOutput, 0},
                            .data = target.memory,
                            .bytes = static_cast<uint32_t>(state->raw_bytes)});
  }
  return delivered == consumers;
}

const std::byte* Executor::SentFrom(const BoundStrand& strand, const BoundStep& step,
                                    const BoundOperand& operand, const Range& range,
                                    const StrandState& state, SliceHeader* header) const {
  if (strand.phase.lane_class != LaneClass::kData) return nullptr;
  const std::byte* from = nullptr;
  if (call_.sends_output && operand.format.form == Form::kResult &&
      call_.codec->ResultIsPayload() && KeepsResult(strand, step)) {
    from = OutputAt(range);
  } else if (call_.sends_input && step.inputs == 1 &&
             strand.operands[step.first].space == Space::kInput) {
    header->is_input = !call_.codec->InputIsPayload() && call_.codec->InputsAreAlike() &&
                       operand.send->marks_inputs();
    if (call_.codec->InputIsPayload() || header->is_input) from = InputAt(range);
  }
  if (from != nullptr && operand.send->SendsFrom(from, state.raw_bytes, call_.on_device)) {
    return from;
  }
  header->is_input = false;
  return nullptr;
}

Status Executor::AwaitReaders() {
  while (!zero_copy_lanes_.empty()) {
    Result<bool> drained = zero_copy_lanes_.back()->Drained();
    if (!drained.ok()) return drained.status();
    if (!*drained) break;
    zero_copy_lanes_.pop_back();
  }
  return Status::Ok();
}

}  // namespace inccl
