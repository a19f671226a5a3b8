// SPDX-License-Identifier: Apache-2.0
//
// The symbolic run of Validate: strands run their steps as soon as they can, lanes have one slot,
// values are expressions. Used once, by one thread.
#ifndef INCCL_COLLECTIVES_VALIDATE_RUN_H_
#define INCCL_COLLECTIVES_VALIDATE_RUN_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/fold_expressions.h"
#include "collectives/schedule.h"
#include "collectives/validate_causality.h"
#include "collectives/validate_parts.h"

namespace inccl {

class SymbolicRun {
 public:
  // `table` belongs to the schedules; all of them outlive this.
  SymbolicRun(std::span<const Schedule> schedules, const SharedLanes& table, int windows,
              const HostMap* hosts);

  Result<Proof> Run();

 private:
  // The contents of a slot.
  struct Value {
    int window = -1;
    uint8_t phase = 0;
    uint8_t channel = 0;
    uint32_t chunk = 0;
    Format format;
    int expression = 0;
    int messages = 0;   // on the longest chain of steps before this value, within the window
    int crossings = 0;  // messages from host to host on the chain that has the most of them
    uint32_t step = 0;  // that wrote the value
  };

  struct LaneState {
    Value value;
    size_t unread = 0;        // consumers that have not released the slot
    std::vector<bool> reads;  // by consumer: has not read it yet
    StepClock known;          // by the step that wrote it
  };

  struct StrandState {
    size_t rank = 0, strand = 0;
    int window = 0;
    size_t step = 0;
    int messages = 0, crossings = 0;
    int row_messages = 0, row_crossings = 0;  // at the end of the first window
    bool awaited = false;                // other strands begin a window only after this one has
                                         // finished it
    std::vector<StepClock> window_ends;  // if awaited: the strand's knowledge after each window
  };

  // Why a strand cannot continue.
  struct Blocked {
    std::string by;
    size_t strand = 0;  // into strands_: the strand that must run first
  };

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
  size_t Index(const StrandState& state) const {
    return static_cast<size_t>(&state - strands_.data());
  }
  const LaneEnd& End(const StrandState& state, const Operand& operand) const {
    return table_.ends[state.rank][operand.index];
  }
  static std::string ValueText(const Value& value);
  std::string At(const StrandState& state) const;  // "rank 1 strand 0 step 3 window 2"
  Status Error(const StrandState& state, const std::string& what) const;

  // Returns whether the strand must wait; if `blocked` is not null, stores the reason.
  bool Why(const StrandState& state, Blocked* blocked) const;
  // Runs the next step of a strand that need not wait.
  Status Execute(StrandState* state);
  // Reads the value of an input, which must be what the step expects.
  Status Read(const StrandState& state, const Operand& operand, Value* value) const;
  // Checks that an output holds what its format says.
  Status Check(const StrandState& state, const Operand& output, int expression) const;
  Status WriteOutput(const StrandState& state, const Operand& output, int expression);
  // Counts the message that has brought `value`.
  void Count(StrandState* state, const Operand& operand, const Value& value);
  void Advance(StrandState* state);
  // Follows the chain of waiting strands from one that cannot continue.
  Status Deadlock(const StrandState& first) const;
  // Checks that every output is written, and every lane is empty.
  Status CheckEnd() const;

  std::span<const Schedule> schedules_;
  const SharedLanes& table_;
  const int windows_;
  const HostMap* const hosts_;
  FoldExpressions expressions_;
  Causality causality_;
  Proof proof_{.rank_order = true};
  std::vector<StrandState> strands_;  // of all ranks
  std::vector<size_t> strand_base_;   // by rank, into strands_
  std::vector<LaneState> lanes_;
  std::vector<std::vector<Value>> scratch_;  // by rank
  std::vector<size_t> cell_base_;            // by phase: its first cell; cells are chunk x channel
  std::vector<std::vector<int>> written_;    // by rank and cell: windows written
  std::vector<std::pair<int, int>> agreed_;  // by cell: the common expression of all ranks, and the
                                             // first rank that had it
  std::vector<int> parts_;                   // of the current fold
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_VALIDATE_RUN_H_
