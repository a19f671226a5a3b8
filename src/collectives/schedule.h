// SPDX-License-Identifier: Apache-2.0
//
// Algorithms as data. A schedule is what one rank does, in a few strands; the only kind of step is
// outputs = fold(inputs), in listed order, over lanes, the input, the output and scratch. It knows
// nothing of bytes, codecs and transports: the executor multiplies it by rows and slices,
// `Validate` proves it, `Dump` prints it.
//
// Steps of a strand run in order; strands are independent but for their row dependencies. Each end
// of a lane belongs to exactly one strand, so results do not depend on timing (a Kahn network), and
// one run with lanes of capacity 1 proves freedom from deadlock for all interleavings and
// capacities.
#ifndef INCCL_COLLECTIVES_SCHEDULE_H_
#define INCCL_COLLECTIVES_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"
#include "transport/transport.h"

namespace inccl {

enum class Algorithm : uint8_t { kRing, kTree, kRecursiveDoubling, kDirectOneShot, kDirect };
inline constexpr int kAlgorithms = 5;
const char* Name(
    Algorithm algorithm);  // "ring", "tree", "recursive_doubling", "direct_one_shot", "direct"

enum class Space : uint8_t { kLane, kInput, kOutput, kScratch };

struct Operand {
  Space space = Space::kInput;
  uint16_t index =
      0;  // kLane: into Schedule::lanes; kScratch: scratch slot of this schedule; else 0
  uint16_t chunk =
      0;  // which of the phase's chunks this operand holds; for scratch, what was put there
  Format
      format;  // kInput space: Form::kInput; kOutput space: Form::kOutput (side phase: Form::kSide)
};

struct Step {
  uint32_t first_operand = 0;  // into Schedule::operands: inputs, then outputs; all of one chunk
  uint16_t inputs = 0, outputs = 0;
};

// The strand may begin row r only when `strand` has finished row r - lag (rows below 0 count as
// finished).
struct Dependency {
  uint16_t strand = 0;
  uint16_t lag = 0;
};

struct Strand {
  uint8_t phase = 0;
  uint8_t channel = 0;  // which share of every chunk this strand works on
  std::vector<Step> steps;
  std::vector<Dependency> waits;
};

struct ScheduleLane {
  LaneClass lane_class = LaneClass::kData;
  uint8_t channel = 0;
  int producer = 0;
  std::vector<int> consumers;  // ascending
};

// A phase cuts every row into `chunks` parts (codec superblocks dealt evenly), and every part into
// `channels` shares. In reduce-scatter and all-gather chunk c is the row of rank c's segment.
struct Phase {
  uint16_t chunks = 1;
  uint16_t channels = 1;
  LaneClass lane_class = LaneClass::kData;
};

struct Schedule {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int nranks = 1;
  int rank = 0;
  int root = 0;
  std::vector<Phase> phases;
  std::vector<ScheduleLane> lanes;  // those this rank produces or consumes
  std::vector<Operand> operands;
  std::vector<Strand> strands;  // in the order in which they are polled
  uint16_t scratch_slots = 0;
};

struct ScheduleRequest {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int nranks = 1;
  int rank = 0;
  int root = 0;
  int channels = 1;
  bool side_phase = false;  // all-reduce only: prepend an agreement phase on side lanes
  bool side_one_shot =
      false;  // the agreement by direct one-shot (small calls), else by direct two-shot
};

// The schedule of one rank, or why there is none (kInvalidArgument naming collective and
// algorithm).
Result<Schedule> MakeSchedule(const ScheduleRequest& request);
bool HasSchedule(Collective collective, Algorithm algorithm, int nranks);

// What Validate proves about a communicator's schedules besides their being right.
struct Proof {
  bool rank_order = false;  // every sum is folded as ((0 + 1) + 2) + ... + n-1: reproducible
  int steps = 0;  // steps on the longest chain of dependent steps of one row, a measure of latency
};

// schedules[r] is rank r's. Symbolically runs `rows` rows with lanes of capacity 1 and checks that
// sends meet receives of the same chunk and format, that every output is the fold of exactly the
// contributions the collective promises, that `contributions` is what has really been added, that
// each lane end belongs to one strand, that nothing is left in a lane, and that the run ends. An
// error says rank, strand, step and what was found.
Result<Proof> Validate(std::span<const Schedule> schedules, int rows = 3);

// For people: NCCL's names (send, recv, recv-reduce-send, recv-copy-send, ...) derived from the
// operands.
std::string DumpText(const Schedule& schedule);
// Graphviz DOT of the whole communicator: steps as nodes, lanes as arrows.
std::string DumpDot(std::span<const Schedule> schedules);

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_SCHEDULE_H_
