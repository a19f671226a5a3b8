// SPDX-License-Identifier: Apache-2.0
//
// The parts of Validate: the rules for one schedule, the lanes that the schedules of a communicator
// share, and the symbolic run. Errors are kInternalError without the title of the schedule.
#ifndef INCCL_COLLECTIVES_VALIDATE_PARTS_H_
#define INCCL_COLLECTIVES_VALIDATE_PARTS_H_

#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"

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

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_VALIDATE_PARTS_H_
