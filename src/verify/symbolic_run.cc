// SPDX-License-Identifier: Apache-2.0
#include "verify/symbolic_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "collectives/schedule.h"

namespace inccl {
namespace {

constexpr int kBits = 64;
constexpr int kMany = 1 << 20;  // limit of counting with multiplicity

uint64_t HashOf(std::span<const int> parts) {
  uint64_t hash = parts.size();
  for (int part : parts) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

FoldExpressions::FoldExpressions(int nranks) : nranks_(nranks) {
  const size_t words = static_cast<size_t>((nranks + kBits - 1) / kBits);
  for (int rank = 0; rank < nranks; ++rank) {
    Node leaf;
    leaf.ranks.resize(words);
    leaf.ranks[static_cast<size_t>(rank / kBits)] = uint64_t{1} << (rank % kBits);
    leaf.prefix = rank == 0 ? 1 : 0;
    nodes_.push_back(std::move(leaf));
  }
}

int FoldExpressions::Fold(std::span<const int> parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<int>& candidates = by_hash_[HashOf(parts)];
  for (int candidate : candidates) {
    if (std::equal(parts.begin(), parts.end(), node(candidate).parts.begin(),
                   node(candidate).parts.end())) {
      return candidate;
    }
  }
  const int made = static_cast<int>(nodes_.size());
  nodes_.push_back(MakeFold(parts));
  candidates.push_back(made);
  return made;
}

FoldExpressions::Node FoldExpressions::MakeFold(std::span<const int> parts) const {
  Node fold = node(parts[0]);
  fold.parts.assign(parts.begin(), parts.end());
  for (size_t i = 1; i < parts.size(); ++i) {
    const Node& part = node(parts[i]);
    fold.contributions = std::min(fold.contributions + part.contributions, kMany);
    if (fold.repeated < 0) fold.repeated = part.repeated;
    for (size_t word = 0; word < fold.ranks.size(); ++word) {
      const uint64_t both = fold.ranks[word] & part.ranks[word];
      if (both != 0 && fold.repeated < 0) {
        fold.repeated = static_cast<int>(word) * kBits + std::countr_zero(both);
      }
      fold.ranks[word] |= part.ranks[word];
    }
    const bool next = part.parts.empty() && fold.prefix > 0 && parts[i] == fold.prefix;
    fold.prefix = next ? fold.prefix + 1 : 0;
  }
  fold.distinct = 0;
  for (uint64_t word : fold.ranks) fold.distinct += std::popcount(word);
  return fold;
}

bool FoldExpressions::Contains(int expression, int rank) const {
  const uint64_t word = node(expression).ranks[static_cast<size_t>(rank / kBits)];
  return (word >> (rank % kBits) & 1) != 0;
}

std::string FoldExpressions::Text(int expression) const {
  constexpr int kLongest = 1024;  // contributions; in an invalid schedule they may double in every
                                  // step
  const Node& self = node(expression);
  if (self.parts.empty()) return fmt::format("{}", expression);
  if (self.contributions > kLongest) return fmt::format("(more than {} terms)", kLongest);
  std::string text = "(";
  for (size_t i = 0; i < self.parts.size(); ++i) {
    if (i > 0) text += " + ";
    text += Text(self.parts[i]);
  }
  return text + ")";
}

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

// The checks of values in the symbolic run.

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
