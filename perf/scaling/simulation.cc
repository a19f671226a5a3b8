// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "transport/transport.h"

namespace inccl::perf {

Simulation::Simulation(const Fleet* fleet, const HostMap* hosts, const SlotOptions& slots)
    : fleet_(fleet), hosts_(hosts), slots_(slots) {
  for (const FleetRank& rank : fleet->ranks) {
    first_strand_.push_back(strands_.size());
    strands_.resize(strands_.size() + rank.strands.size());
  }
}

void Simulation::Reset() {
  now_ = 0;
  totals_ = {};
  events_ = {};
  lanes_.assign(fleet_->lanes.size(), {});
  ends_.assign(fleet_->ends.size(), {});
  size_t times = 0;
  for (size_t end = 0; end < ends_.size(); ++end) {
    ends_[end].times = times;
    times += DepthOf(fleet_->lanes[fleet_->ends[end].lane]);
  }
  seen_.assign(times, 0);
  credited_.assign(times, 0);
  std::fill(strands_.begin(), strands_.end(), Strand{});
  ranks_.assign(fleet_->ranks.size(), {});
  link_.assign(static_cast<size_t>(hosts_->hosts()), {});
  site_links_.assign(static_cast<size_t>(hosts_->sites()), {});
}

Result<CallTotals> Simulation::Run(const Chunking& chunking, const Machine& machine,
                                   Payloads* payloads) {
  chunking_ = chunking;
  machine_ = machine;
  payloads_ = payloads;
  link_ps_per_byte_ = 8000 / machine.gbps * machine.framing;
  site_ps_per_byte_ = machine.site_gbps > 0 ? 8000 / machine.site_gbps * machine.framing : 0;
  site_latency_ = Picoseconds(machine.site_latency);
  processor_scale_ = std::max(1.0, 1 / machine.processors_per_rank);
  latency_ = Picoseconds(machine.latency);
  local_latency_ = Picoseconds(machine.local_latency);
  large_ = static_cast<double>(chunking.options().bytes()) > machine.cache_bytes;
  Reset();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].unfinished = static_cast<uint32_t>(fleet_->ranks[rank].strands.size());
    Schedule(rank, 0);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    if (event.bytes != 0) {
      OnMessage(event);
    } else if (ranks_[event.index].event == event.time) {
      OnRank(event.index);
    }
  }
  Time busiest = 0;
  for (const Rank& rank : ranks_) {
    if (rank.unfinished != 0) return Stuck();
    busiest = std::max(busiest, rank.busy);
  }
  totals_.busy_seconds = static_cast<double>(busiest) * 1e-12;
  for (const Link& site : site_links_) totals_.site_sent = std::max(totals_.site_sent, site.sent);
  for (const Link& host : link_) {
    totals_.most_sent = std::max(totals_.most_sent, host.sent);
    totals_.most_received = std::max(totals_.most_received, host.received);
  }
  return totals_;
}

Status Simulation::Stuck() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (size_t s = 0; s < fleet_->ranks[rank].strands.size(); ++s) {
      const Strand& state = strands_[first_strand_[rank] + s];
      if (state.finished) continue;
      return InternalError(
          fmt::format("rank {} strand {} waits for ever: window {} step {} slice {}", rank, s,
                      state.window, state.step, state.slice));
    }
  }
  return InternalError("no rank waits");
}

Simulation::Time Simulation::Occupy(uint32_t rank, double nanoseconds) {
  const Time time = Picoseconds(nanoseconds * processor_scale_);
  ranks_[rank].busy += time;
  return now_ + time;
}

void Simulation::Schedule(uint32_t rank, Time time) {
  if (time >= ranks_[rank].event) return;
  ranks_[rank].event = time;
  Push(time, rank, 0);
}

void Simulation::Wake(uint32_t rank, uint8_t strand, Time time) {
  (StrandsOf(rank) + strand)->ready = time;
  if (!ranks_[rank].running) Schedule(rank, std::max(time, now_));
}

void Simulation::OnMessage(const Event& event) {
  const FleetEnd& end = fleet_->ends[event.index];
  Link& host = link_[static_cast<size_t>(hosts_->HostOf(static_cast<int>(end.consumer)))];
  Time begin = std::max(now_, host.receives_until), last = 0;
  if (fleet_->lanes[end.lane].far) {
    Link& site = SiteOf(end.consumer);
    const Time entered = std::max(now_, site.receives_until);
    last = site.receives_until = entered + static_cast<Time>(event.bytes * site_ps_per_byte_);
    begin = std::max(begin, entered);
  }
  host.receives_until = std::max(last, begin + static_cast<Time>(event.bytes * link_ps_per_byte_));
  Arrive(event.index, host.receives_until);
}

void Simulation::Arrive(uint32_t index, Time seen) {
  End& end = ends_[index];
  const FleetEnd& known = fleet_->ends[index];
  seen_[end.times + end.arrived++ % DepthOf(fleet_->lanes[known.lane])] = seen;
  if (!end.waits) return;
  end.waits = false;
  Wake(known.consumer, known.strand, seen);
}

void Simulation::OnRank(uint32_t rank) {
  Rank& state = ranks_[rank];
  state.event = kNever;
  if (state.running) {
    Strand& strand = *(StrandsOf(rank) + state.strand);
    const FleetStep& step = fleet_->ranks[rank].strands[state.strand].steps[strand.step];
    if (state.output == 0 && !state.sent) Release(rank, step);
    if (!PublishAll(rank, step, strand)) return;
    state.running = false;
    ++totals_.steps;
    strand.input = strand.output = 0;
    if (++strand.slice == strand.slice_end) {
      ++strand.step;
      strand.placed = false;
    }
  }
  Poll(rank);
}

void Simulation::Poll(uint32_t rank) {
  Rank& state = ranks_[rank];
  const auto count = static_cast<uint16_t>(fleet_->ranks[rank].strands.size());
  for (uint16_t blocked = 0; blocked < count;) {
    Strand& strand = *(StrandsOf(rank) + state.strand);
    if (!strand.finished && strand.ready <= now_) {
      const uint32_t window = strand.window;
      if (TryStrand(rank, state.strand)) return;
      if (strand.window != window || strand.finished) {
        blocked = 0;  // others may wait for that
        NoteWindow(rank);
      }
    }
    ++blocked;
    state.strand = static_cast<uint16_t>((state.strand + 1) % count);
  }
  Time next = kNever;
  for (uint16_t s = 0; s < count; ++s) {
    const Strand& strand = *(StrandsOf(rank) + s);
    if (!strand.finished) next = std::min(next, strand.ready);
  }
  if (next != kNever) Schedule(rank, next);
}

void Simulation::NoteWindow(uint32_t rank) {
  const auto count = fleet_->ranks[rank].strands.size();
  for (auto strand = StrandsOf(rank);
       strand != StrandsOf(rank) + static_cast<std::ptrdiff_t>(count); ++strand) {
    if (!strand->waits_for_strand) continue;
    strand->waits_for_strand = false;
    strand->ready = now_;
  }
}

// As Executor::Place.
bool Simulation::Place(const FleetStrand& strand, Strand* state) const {
  const Phase& phase = fleet_->phases[strand.phase];
  const uint32_t group_size = chunking_.Group(phase);
  while (true) {
    if (state->groups == 0) {
      if (state->window == chunking_.windows()) return false;
      const Range part = chunking_.Part(state->window, phase, 0, strand.channel);
      state->groups = std::max(1u, (chunking_.Slices(part, phase) + group_size - 1) / group_size);
    }
    while (state->step < strand.steps.size()) {
      const FleetStep& step = strand.steps[state->step];
      state->part = chunking_.Part(state->window, phase, step.chunk, strand.channel);
      state->slice = state->group * group_size;
      state->slice_end = std::min(chunking_.Slices(state->part, phase), state->slice + group_size);
      if (state->slice < state->slice_end) return true;
      ++state->step;
    }
    state->step = 0;
    if (++state->group == state->groups) {
      state->group = state->groups = 0;
      ++state->window;
    }
  }
}

bool Simulation::TryStrand(uint32_t rank, uint16_t index) {
  const FleetStrand& strand = fleet_->ranks[rank].strands[index];
  Strand& state = *(StrandsOf(rank) + index);
  if (!state.placed) {
    if (!Place(strand, &state)) {
      state.finished = true;
      if (--ranks_[rank].unfinished == 0) {
        totals_.seconds = std::max(totals_.seconds, static_cast<double>(now_) * 1e-12);
      }
      return false;
    }
    state.placed = true;
  }
  for (const Dependency& wait : strand.waits) {
    const Strand& other = *(StrandsOf(rank) + wait.strand);
    const uint32_t lag = wait.lag == 0 ? 0 : slots_.side_windows;
    if (other.finished || other.window + lag > state.window) continue;
    state.waits_for_strand = true;
    state.ready = kNever;
    return false;
  }
  const FleetStep& step = strand.steps[state.step];
  if (!InputsReady(rank, step, &state) || !OutputsReady(rank, step, &state)) return false;
  Rank& self = ranks_[rank];
  self.strand = index;
  self.running = true;
  self.output = 0;
  self.sent = false;
  Schedule(rank, Occupy(rank, WorkOf(rank, step, state)));
  return true;
}

bool Simulation::InputsReady(uint32_t rank, const FleetStep& step, Strand* state) {
  const std::span<const FleetOperand> inputs = List(rank, step.inputs);
  for (; state->input < inputs.size(); ++state->input) {
    const FleetOperand& operand = inputs[state->input];
    if (operand.space != Space::kLane) continue;
    End& end = ends_[operand.index];
    if (end.released == end.arrived) {
      end.waits = true;
      state->ready = kNever;
      return false;
    }
    const uint32_t depth = DepthOf(fleet_->lanes[fleet_->ends[operand.index].lane]);
    const Time seen = seen_[end.times + end.released % depth];
    if (seen > now_) {
      state->ready = seen;
      return false;
    }
  }
  return true;
}

bool Simulation::OutputsReady(uint32_t rank, const FleetStep& step, Strand* state) {
  const std::span<const FleetOperand> outputs = List(rank, step.outputs);
  for (; state->output < outputs.size(); ++state->output) {
    const FleetOperand& operand = outputs[state->output];
    if (operand.space != Space::kLane) continue;
    Lane& lane = lanes_[operand.index];
    const FleetLane& known = fleet_->lanes[operand.index];
    const uint32_t depth = DepthOf(known);
    if (lane.published < depth) continue;
    const uint32_t slice = lane.published - depth;  // has had the next slot before
    for (uint32_t e = known.first_end; e < known.first_end + known.ends; ++e) {
      if (ends_[e].released <= slice) {
        lane.waits = true;
        state->ready = kNever;
        return false;
      }
      const Time credited = credited_[ends_[e].times + slice % depth];
      if (credited > now_) {
        state->ready = credited;
        return false;
      }
    }
  }
  return true;
}

// Processor time of the step without the sending of messages.
double Simulation::WorkOf(uint32_t rank, const FleetStep& step, const Strand& state) {
  const FleetStrand& strand = fleet_->ranks[rank].strands[ranks_[rank].strand];
  const Phase& phase = fleet_->phases[strand.phase];
  const Range range = chunking_.Slice(state.part, phase, state.slice);
  StepShape shape{.side = phase.lane_class == LaneClass::kSide};
  double messages = 0;
  for (const FleetOperand& operand : List(rank, step.inputs)) {
    shape.own += operand.space == Space::kInput ? 1 : 0;
    shape.sums += operand.space != Space::kInput && operand.format.form != Form::kResult ? 1 : 0;
    shape.forwards = shape.forwards || operand.format.form == Form::kResult;
    if (operand.space == Space::kLane && fleet_->lanes[fleet_->ends[operand.index].lane].remote) {
      messages +=
          machine_.message + payloads_->Bytes(operand.format, range) * machine_.message_byte;
    }
  }
  for (const FleetOperand& operand : List(rank, step.outputs)) {
    if (operand.space == Space::kOutput) {
      shape.output = true;
      continue;
    }
    shape.result = shape.result || operand.format.form == Form::kResult;
    if (++shape.payloads == 1) shape.bytes = payloads_->Bytes(operand.format, range);
  }
  return machine_.step + messages + payloads_->Work(shape, range.count, large_, machine_);
}

void Simulation::Release(uint32_t rank, const FleetStep& step) {
  for (const FleetOperand& operand : List(rank, step.inputs)) {
    if (operand.space != Space::kLane) continue;
    End& end = ends_[operand.index];
    const uint32_t lane_index = fleet_->ends[operand.index].lane;
    const FleetLane& known = fleet_->lanes[lane_index];
    const Time seen = now_ + LatencyOf(known);
    credited_[end.times + end.released++ % DepthOf(known)] = seen;
    if (!lanes_[lane_index].waits) continue;
    lanes_[lane_index].waits = false;
    Wake(known.producer, known.strand, seen);
  }
}

bool Simulation::PublishAll(uint32_t rank, const FleetStep& step, const Strand& state) {
  Rank& self = ranks_[rank];
  const FleetStrand& strand = fleet_->ranks[rank].strands[self.strand];
  const Range range = chunking_.Slice(state.part, fleet_->phases[strand.phase], state.slice);
  const std::span<const FleetOperand> outputs = List(rank, step.outputs);
  for (; self.output < outputs.size(); ++self.output) {
    const FleetOperand& operand = outputs[self.output];
    if (operand.space != Space::kLane) continue;
    const uint32_t bytes = payloads_->Bytes(operand.format, range);
    if (fleet_->lanes[operand.index].remote && !self.sent) {
      self.sent = true;
      Schedule(rank, Occupy(rank, machine_.message + bytes * machine_.message_byte));
      return false;
    }
    self.sent = false;
    Publish(operand.index, bytes);
  }
  return true;
}

void Simulation::Publish(uint32_t lane_index, uint32_t bytes) {
  const FleetLane& known = fleet_->lanes[lane_index];
  ++lanes_[lane_index].published;
  totals_.slices += known.ends;
  totals_.payload_bytes += uint64_t{bytes} * known.ends;
  if (!known.remote) {
    for (uint32_t e = known.first_end; e < known.first_end + known.ends; ++e) {
      Arrive(e, now_ + local_latency_);
    }
    return;
  }
  const uint32_t consumer = fleet_->ends[known.first_end].consumer;
  Link& from = link_[static_cast<size_t>(hosts_->HostOf(static_cast<int>(known.producer)))];
  Link& to = link_[static_cast<size_t>(hosts_->HostOf(static_cast<int>(consumer)))];
  ++totals_.crossing_slices;
  totals_.crossing_bytes += bytes;
  from.sent += bytes;
  to.received += bytes;
  const uint32_t on_link = bytes + kHeaderBytes;
  Time begin = std::max(now_, from.sends_until);
  from.sends_until = begin + static_cast<Time>(on_link * link_ps_per_byte_);
  if (known.far) {
    Link& site = SiteOf(known.producer);
    site.sent += bytes;
    begin = std::max(begin, site.sends_until);
    site.sends_until = begin + static_cast<Time>(on_link * site_ps_per_byte_);
  }
  Push(begin + LatencyOf(known), known.first_end, on_link);
}

}  // namespace inccl::perf
