// SPDX-License-Identifier: Apache-2.0
//
// How a step uses registered buffers: consumers or devices read payloads in place, and a rank
// writes results into the outputs of its peers.
#include <algorithm>

#include "collectives/executor.h"

namespace inccl {
namespace {

// The producer writes its result into the outputs of at most this many consumers, the first ones of
// the lane; the others read the slot. This bounds the outputs of one step, and the header has a bit
// for each consumer.
constexpr size_t kMostDelivered = 32;

}  // namespace

// True if the step also writes the result into this rank's own output.
bool CollectiveRequest::KeepsResult(const BoundStrand& strand, const BoundStep& step) {
  const BoundOperand* const outputs = strand.operands.data() + step.first + step.inputs;
  return std::any_of(outputs, outputs + step.outputs, [](const BoundOperand& output) {
    return output.format.form == Form::kOutput;
  });
}

void CollectiveRequest::UseZeroCopy(const BoundStrand& strand, const BoundStep& step,
                                    const BoundOperand& operand, const Range& range,
                                    StrandState* state, Outgoing* outgoing) {
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
bool CollectiveRequest::Deliver(const BoundOperand& operand, StrandState* state,
                                Outgoing* outgoing) {
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

const std::byte* CollectiveRequest::SentFrom(const BoundStrand& strand, const BoundStep& step,
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

Status CollectiveRequest::AwaitReaders() {
  while (!zero_copy_lanes_.empty()) {
    Result<bool> drained = zero_copy_lanes_.back()->Drained();
    if (!drained.ok()) return drained.status();
    if (!*drained) break;
    zero_copy_lanes_.pop_back();
  }
  return Status::Ok();
}

}  // namespace inccl
