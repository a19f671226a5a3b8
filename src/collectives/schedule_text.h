// SPDX-License-Identifier: Apache-2.0
//
// Names of the parts of schedules, the same in errors and dumps.
#ifndef INCCL_COLLECTIVES_SCHEDULE_TEXT_H_
#define INCCL_COLLECTIVES_SCHEDULE_TEXT_H_

#include <string>

#include "collectives/schedule.h"

namespace inccl {

const char* Name(LaneClass lane_class);  // "data", "side", "send_recv"
std::string Text(const Format& format);  // "input", "output", "sum(3)", "result", "side"
// Class, channel number, ends: "data/4 0 -> 1", "side/1 2 -> 0,1,3".
std::string Text(const ScheduleLane& lane);
std::string RankList(const std::vector<int>& ranks);      // "0,1,3"; long runs "0-6,8"
std::string Title(const Schedule& schedule);              // "allreduce ring, 4 ranks"
std::string Place(int rank, size_t strand, size_t step);  // "rank 1 strand 0 step 3"

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_SCHEDULE_TEXT_H_
