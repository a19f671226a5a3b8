// SPDX-License-Identifier: Apache-2.0
//
// Algorithms as data. A schedule is the work of one rank, in a few strands. The only kind of step
// is outputs = fold(inputs), in listed order, over lanes, the input, the output and scratch. A
// schedule does not contain bytes, codecs or transports: the executor repeats it for all windows
// and slices, the validator proves it (verify/validate.h).
//
// Steps of a strand run in order; strands are independent except for their window dependencies.
// Each end of a lane belongs to exactly one strand, so results do not depend on timing (a Kahn
// network), and one run with lanes of capacity 1 proves freedom from deadlock for all interleavings
// and capacities. The proof holds for any number of slices: a run that ends with all lanes empty
// ends in its initial state, so the steps of a phase can be repeated, in groups of as many slices
// as a lane has slots. Strands only wait for earlier windows, or for earlier phases of their
// window, so windows and phases can be completed one by one.
#ifndef INCCL_COLLECTIVES_SCHEDULE_H_
#define INCCL_COLLECTIVES_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "collectives/algorithms.h"
#include "compress/codec.h"
#include "topology/host_map.h"
#include "transport/transport.h"

namespace inccl {

enum class Space : uint8_t { kLane, kInput, kOutput, kScratch };

struct Operand {
  Space space = Space::kInput;
  // kLane: index into Schedule::lanes; kScratch: scratch slot of this schedule; else 0.
  uint16_t index = 0;
  // The chunk of the phase that this operand holds; for scratch, the chunk stored there.
  uint32_t chunk = 0;
  // kInput space: Form::kInput; kOutput space: Form::kOutput (side phase: Form::kSide); lanes and
  // scratch: kSum or kResult (side phase: kSide, `contributions` is the number of the phase).
  Format format;
};

// At least one input and one output. No lane and no scratch slot appears twice in a step, so a step
// consumes and fills at most one slot of each lane.
struct Step {
  uint32_t first_operand = 0;  // into Schedule::operands: inputs, then outputs; all of one chunk
  uint16_t inputs = 0, outputs = 0;
};

// The strand may begin window r only when `strand` has finished window r - lag (windows below 0
// count as finished). Lag 0 only for strands of an earlier phase.
struct Dependency {
  uint16_t strand = 0;
  uint16_t lag = 0;
};

struct Strand {
  uint8_t phase = 0;
  uint8_t channel = 0;  // the share of every chunk that this strand works on
  std::vector<Step> steps;
  std::vector<Dependency> waits;
};

// Lanes are shared by all calls and algorithms that name them alike, so every schedule leaves its
// lanes empty. `channel` tells apart lanes of equal ends: kLanePlanes * (the strands' channel) +
// plane. No two lanes of a schedule have class, channel, producer and one consumer in common, not
// even when a multicast lane is replaced by one lane per consumer.
// The lanes of side phase p are on the planes from p * kSidePlanes; one that is alone may use all.
inline constexpr int kLanePlanes = 4;
inline constexpr int kSidePlanes = 2;
// Side information runs at most this many windows ahead of the data, and more over long links
// (SlotOptions::side_windows). The codec's state keeps that of all windows of a call.
inline constexpr int kSideWindows = 2;
inline constexpr int kMostSidePhases = kLanePlanes / kSidePlanes;
inline constexpr int kMaxChannels = 256 / kLanePlanes;
// With more ranks, a side phase of an all-reduce that is alone is a tree: to send to every rank
// would take too many lanes.
inline constexpr int kMostDirectRanks = 64;
struct ScheduleLane {
  LaneClass lane_class = LaneClass::kData;
  uint8_t channel = 0;
  int producer = 0;
  std::vector<int> consumers;  // ascending, without the producer
};

// A phase divides every window into `chunks` parts (codec superblocks dealt evenly), and every part
// into `channels` shares. If a call has several segments (SegmentsOf), chunk c is the window of
// segment c. A chunk or share without elements has no slices: its steps are skipped at both ends of
// every lane.
struct Phase {
  uint32_t chunks = 1;
  uint16_t channels = 1;
  LaneClass lane_class = LaneClass::kData;
};

struct Schedule {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int nranks = 1;
  int rank = 0;
  int root = 0;
  int group = 0;                    // 0: of all ranks
  std::vector<Phase> phases;        // [side information, [more of it,]] data
  std::vector<ScheduleLane> lanes;  // the lanes that this rank produces or consumes
  std::vector<Operand> operands;
  std::vector<Strand> strands;  // in the order in which they are polled
  uint16_t scratch_slots = 0;   // one strand uses each; empty between windows
};

struct ScheduleRequest : CollectiveArgs {
  Algorithm algorithm = Algorithm::kRing;
  int channels = 1;  // 1..kMaxChannels
  // Phases on side lanes before the data, 0..kMostSidePhases; each needs what the ones before it
  // have agreed on. All-reduce and reduce-scatter: an agreement, all-reduced by MAX. All-gather:
  // the side information of the senders.
  size_t side_phases = 0;
  // All-reduce only: the agreements by direct one-shot (small calls), else by direct two-shot.
  bool side_one_shot = false;
  // Two-shot all-reduce only: groups of this many ranks add up their contributions to other groups
  // and send the sums. 0: every rank sends to every rank.
  int group = 0;
  // Hierarchical schedules and rings, chains and trees cross from host to host as rarely as they
  // can. nullptr: one host.
  const HostMap* hosts = nullptr;
};

// Returns the schedule of one rank, or kInvalidArgument with collective and algorithm if there is
// none.
Result<Schedule> MakeSchedule(const ScheduleRequest& request);
// `hosts`: as in ScheduleRequest.
bool HasSchedule(Collective collective, Algorithm algorithm, int nranks,
                 const HostMap* hosts = nullptr);
// Whether there are numbers of ranks and hosts for which HasSchedule is true.
bool HasSchedules(Collective collective, Algorithm algorithm);

// Names of the parts of schedules, the same in errors and dumps.

const char* Name(LaneClass lane_class);  // "data", "side", "send_recv"
std::string Text(const Format& format);  // "input", "output", "sum(3)", "result", "side"
// Class, channel number, ends: "data/4 0 -> 1", "side/1 2 -> 0,1,3".
std::string Text(const ScheduleLane& lane);
std::string RankList(const std::vector<int>& ranks);      // "0,1,3"; long runs "0-6,8"
std::string Title(const Schedule& schedule);              // "allreduce ring, 4 ranks"
std::string Place(int rank, size_t strand, size_t step);  // "rank 1 strand 0 step 3"

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_SCHEDULE_H_
