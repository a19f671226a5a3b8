// SPDX-License-Identifier: Apache-2.0
//
// The parts of Validate: the rules for one schedule, the lanes that the schedules of a communicator
// share, and the symbolic run. Errors are kInternalError without the title of the schedule.
#ifndef INCCL_VERIFY_SYMBOLIC_RUN_H_
#define INCCL_VERIFY_SYMBOLIC_RUN_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"
#include "verify/validate.h"

namespace inccl {

// What a collective promises: the rank whose input a chunk of the output is (-1: the sum of all);
// whether a rank has this chunk of the input; and whether it gets it as output of a phase. All
// ranks get the side information of every chunk.
int SourceOf(const Schedule& schedule, int chunk);
bool HasInput(const Schedule& schedule, int chunk);
bool HasOutput(const Schedule& schedule, const Phase& phase, int chunk);

// Checks that indices are in range, that operands have the forms and the side of a step that their
// space allows, and that phases are coupled.
Status CheckStructure(const Schedule& schedule);

// One lane of the communicator. Strands are indices into the schedule of their rank.
struct SharedLane {
  const ScheduleLane* lane = nullptr;  // the producer's
  int producer_strand = 0;
  std::vector<int> consumer_strands;  // beside lane->consumers
};

// A lane as one rank's schedule names it.
struct LaneEnd {
  int shared = -1;    // into SharedLanes::lanes
  int consumer = -1;  // index of the rank among the consumers; -1: it is the producer
};

struct SharedLanes {
  std::vector<SharedLane> lanes;
  std::vector<std::vector<LaneEnd>> ends;  // [rank][index into Schedule::lanes]
};

// Checks that all ranks of a lane know it, and that exactly one strand uses every end. The
// schedules have passed CheckStructure and outlive the table.
Result<SharedLanes> MatchLanes(std::span<const Schedule> schedules);

// Runs `windows` windows symbolically; each lane has one slot. `hosts` may be null.
Result<Proof> RunSymbolically(std::span<const Schedule> schedules, const SharedLanes& table,
                              int windows, const HostMap* hosts);

// In place, the output of a chunk overwrites its input. So no step may write it before every step
// that reads that input is known to have run, in every interleaving. Vector clocks (Fidge 1988,
// Mattern 1989) express what is known: a step knows what its strand knew, and what the writers of
// the slices that it reads knew.

// By strand of the communicator (ranks in order, strands in order): steps known to have run.
using StepClock = std::vector<uint32_t>;

class Causality {
 public:
  // The schedules have passed CheckStructure and outlive this.
  explicit Causality(std::span<const Schedule> schedules);

  // Adds `known` to the knowledge of `strand` (of the communicator).
  void Learn(size_t strand, const StepClock& known);
  // Runs a step of `strand` and returns what the strand then knows.
  const StepClock& Tick(size_t strand);
  const StepClock& of(size_t strand) const { return clocks_[strand]; }
  // Returns a step of this rank that might read the input of a chunk only after the given step of
  // window `window` has written its output, as in "strand 0 step 3"; "" if there is none. Side
  // information of a window (if chunks are segments: of the chunk) is read before any output is
  // written.
  std::string LateReader(size_t rank, size_t strand, size_t step, int window, int chunk) const;

 private:
  struct Reader {
    size_t strand, step;  // of the rank's schedule
  };

  std::string Late(const std::vector<Reader>& readers, size_t rank, size_t strand, size_t step,
                   int window) const;

  std::span<const Schedule> schedules_;
  std::vector<size_t> base_;       // by rank: its first strand
  std::vector<StepClock> clocks_;  // by strand of the communicator
  bool segmented_;                 // chunks of both phases are segments
  // By rank and segment (without segments: 0).
  std::vector<std::vector<std::vector<Reader>>> side_readers_;
  // By rank and cell: chunk * channels + channel of the data phase.
  std::vector<std::vector<std::vector<Reader>>> data_readers_;
};

// Symbolic values of the validator: which contributions have been folded, in which order, and after
// which step they were rounded. Equal expressions have equal numbers (hash-consing), so comparing
// results is comparing ints.
class FoldExpressions {
 public:
  explicit FoldExpressions(int nranks);

  // The contribution of rank r.
  int Leaf(int rank) const { return rank; }
  // The fold of several values in this order; the fold of one value is that value.
  int Fold(std::span<const int> parts);

  int contributions(int expression) const { return node(expression).contributions; }
  bool Contains(int expression, int rank) const;
  // A rank that the expression contains more than once; -1 if there is none.
  int Repeated(int expression) const { return node(expression).repeated; }
  // Ranks 0, 1, ..., n-1 one after the other: ((0 + 1) + 2) + ...
  bool InRankOrder(int expression) const { return node(expression).prefix == nranks_; }
  bool Complete(int expression) const { return node(expression).distinct == nranks_; }
  // "0", "(0 + 1 + 2)", "((0 + 1) + (2 + 3))": parentheses are steps.
  std::string Text(int expression) const;

 private:
  struct Node {
    std::vector<int> parts;       // empty: a leaf
    std::vector<uint64_t> ranks;  // set
    int contributions = 1;        // with multiplicity; 2^20 means many
    int distinct = 1;
    int prefix = 0;  // k > 0: exactly ((0 + 1) + ...) + k-1
    int repeated = -1;
  };
  const Node& node(int expression) const { return nodes_[static_cast<size_t>(expression)]; }
  Node MakeFold(std::span<const int> parts) const;

  int nranks_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, std::vector<int>> by_hash_;
};

// The symbolic run of Validate: strands run their steps as soon as they can, lanes have one slot,
// values are expressions. Used once, by one thread.
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

#endif  // INCCL_VERIFY_SYMBOLIC_RUN_H_
