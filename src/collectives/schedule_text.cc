// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_text.h"

#include <fmt/format.h>

namespace inccl {

const char* Name(LaneClass lane_class) {
  switch (lane_class) {
    case LaneClass::kData: return "data";
    case LaneClass::kSide: return "side";
    case LaneClass::kSendRecv: return "send_recv";
  }
  return "unknown";
}

std::string Text(const Format& format) {
  switch (format.form) {
    case Form::kInput: return "input";
    case Form::kOutput: return "output";
    case Form::kSum: return fmt::format("sum({})", format.contributions);
    case Form::kResult: return "result";
    case Form::kSide: return "side";
  }
  return "unknown";
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += fmt::format("{}", ranks[i]);
    if (last > i) text += fmt::format("{}{}", last > i + 1 ? "-" : ",", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string Text(const ScheduleLane& lane) {
  return fmt::format("{}/{} {} -> {}", Name(lane.lane_class), lane.channel, lane.producer,
                     RankList(lane.consumers));
}

std::string Title(const Schedule& schedule) {
  return fmt::format("{} {}, {} {}", Name(schedule.collective), Name(schedule.algorithm),
                     schedule.nranks, schedule.nranks == 1 ? "rank" : "ranks");
}

std::string Place(int rank, size_t strand, size_t step) {
  return fmt::format("rank {} strand {} step {}", rank, strand, step);
}

}  // namespace inccl
