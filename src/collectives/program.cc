// SPDX-License-Identifier: Apache-2.0
#include "collectives/program.h"

#include <algorithm>
#include <utility>

namespace inccl {
namespace {

LaneSpec SpecOf(const ScheduleLane& lane, const SlotOptions& slots) {
  const bool side = lane.lane_class == LaneClass::kSide;
  return {.lane_class = lane.lane_class,
          .channel = lane.channel,
          .producer = lane.producer,
          .consumers = lane.consumers,
          .slot_bytes = side ? slots.side_bytes : slots.data_bytes};
}

class Binder {
 public:
  Binder(const Schedule& schedule, const SlotOptions& slots, LaneTable* lanes)
      : schedule_(schedule), slots_(slots), lanes_(lanes) {}

  // Appends the bound form of `operand`: one operand, or several where a lane fans out.
  Status Append(const Operand& operand, bool is_output, std::vector<BoundOperand>* out) {
    if (operand.space != Space::kLane) {
      out->push_back({.space = operand.space, .scratch = operand.index, .format = operand.format});
      return Status::Ok();
    }
    LaneSpec spec = SpecOf(schedule_.lanes[operand.index], slots_);
    return is_output ? AppendSend(std::move(spec), operand.format, out)
                     : AppendRecv(std::move(spec), operand.format, out);
  }

 private:
  Status AppendSend(LaneSpec spec, const Format& format, std::vector<BoundOperand>* out) {
    for (std::vector<int>& consumers : Split(spec)) {
      spec.consumers = std::move(consumers);
      spec.depth = lanes_->DepthOf(spec, slots_);
      Result<SendLane*> lane = lanes_->Send(spec);
      if (!lane.ok()) return lane.status();
      out->push_back({.space = Space::kLane,
                      .format = format,
                      .send = *lane,
                      .peer = spec.consumers.front(),
                      .receivers = static_cast<int>(spec.consumers.size())});
    }
    return Status::Ok();
  }

  Status AppendRecv(LaneSpec spec, const Format& format, std::vector<BoundOperand>* out) {
    for (std::vector<int>& consumers : Split(spec)) {
      if (std::find(consumers.begin(), consumers.end(), schedule_.rank) == consumers.end()) {
        continue;
      }
      spec.consumers = std::move(consumers);
      break;
    }
    spec.depth = lanes_->DepthOf(spec, slots_);
    Result<RecvLane*> lane = lanes_->Recv(spec);
    if (!lane.ok()) return lane.status();
    out->push_back({.space = Space::kLane, .format = format, .recv = *lane, .peer = spec.producer});
    return Status::Ok();
  }

  std::vector<std::vector<int>> Split(const LaneSpec& spec) const {
    return lanes_->transport()->Split(spec.producer, spec.consumers);
  }

  const Schedule& schedule_;
  const SlotOptions& slots_;
  LaneTable* lanes_;
};

}  // namespace

uint16_t LaneTable::DepthOf(const LaneSpec& spec, const SlotOptions& slots) const {
  const bool side = spec.lane_class == LaneClass::kSide;
  if (hosts_ != nullptr && !hosts_->SameHost(spec.producer, spec.consumers.front())) {
    return side ? slots.network_side_depth : slots.network_data_depth;
  }
  return side ? slots.side_depth : slots.data_depth;
}

Result<SendLane*> LaneTable::Send(const LaneSpec& spec) {
  std::unique_ptr<SendLane>& lane = send_[spec.Key()];
  if (lane == nullptr) {
    Result<std::unique_ptr<SendLane>> opened = transport_->OpenSend(spec);
    if (!opened.ok()) return opened.status();
    lane = *std::move(opened);
  }
  return lane.get();
}

Result<RecvLane*> LaneTable::Recv(const LaneSpec& spec) {
  std::unique_ptr<RecvLane>& lane = recv_[spec.Key()];
  if (lane == nullptr) {
    Result<std::unique_ptr<RecvLane>> opened = transport_->OpenRecv(spec);
    if (!opened.ok()) return opened.status();
    lane = *std::move(opened);
  }
  return lane.get();
}

Result<std::unique_ptr<Program>> Bind(Schedule schedule, const SlotOptions& slots,
                                      LaneTable* lanes) {
  auto program = std::make_unique<Program>();
  program->slots = slots;
  Binder binder(schedule, slots, lanes);
  for (const Strand& strand : schedule.strands) {
    BoundStrand& bound = program->strands.emplace_back();
    bound.phase = schedule.phases[strand.phase];
    bound.channel = strand.channel;
    bound.waits = strand.waits;
    for (Dependency& wait : bound.waits) {
      if (wait.lag != 0) wait.lag = slots.side_windows;
    }
    for (const Step& step : strand.steps) {
      const auto first = static_cast<uint32_t>(bound.operands.size());
      const std::span<const Operand> operands(schedule.operands.data() + step.first_operand,
                                              size_t{step.inputs} + step.outputs);
      uint32_t inputs_end = 0;
      for (size_t i = 0; i < operands.size(); ++i) {
        if (i == step.inputs) inputs_end = static_cast<uint32_t>(bound.operands.size());
        Status status = binder.Append(operands[i], i >= step.inputs, &bound.operands);
        if (!status.ok()) return status;
      }
      const auto end = static_cast<uint32_t>(bound.operands.size());
      bound.steps.push_back({.chunk = operands[0].chunk,
                             .first = first,
                             .inputs = static_cast<uint16_t>(inputs_end - first),
                             .outputs = static_cast<uint16_t>(end - inputs_end)});
      program->max_operands = std::max(program->max_operands, end - first);
    }
  }
  program->schedule = std::move(schedule);
  return program;
}

}  // namespace inccl
