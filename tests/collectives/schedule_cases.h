// SPDX-License-Identifier: Apache-2.0
//
// What the tests of schedules have in common.
#ifndef INCCL_TESTS_COLLECTIVES_SCHEDULE_CASES_H_
#define INCCL_TESTS_COLLECTIVES_SCHEDULE_CASES_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "collectives/schedule.h"
#include "world/limits.h"

namespace inccl::test {

// Every number of ranks up to this is proven; a sanitizer sees the same code with fewer.
inline constexpr int kProvenRanks = kSanitized ? 20 : 64;

// The schedules of all ranks; request.rank does not matter.
inline std::vector<Schedule> MakeAll(ScheduleRequest request) {
  std::vector<Schedule> schedules;
  for (request.rank = 0; request.rank < request.nranks; ++request.rank) {
    Result<Schedule> schedule = MakeSchedule(request);
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    if (schedule.ok()) schedules.push_back(std::move(*schedule));
  }
  return schedules;
}

inline std::string Describe(const ScheduleRequest& request) {
  return fmt::format("{} {} n={} root={} channels={} side={} one_shot={}", Name(request.collective),
                     Name(request.algorithm), request.nranks, request.root, request.channels,
                     request.side_phases, request.side_one_shot);
}

struct Case {
  Collective collective;
  Algorithm algorithm;
};

// Every algorithm that exists for ranks on one host.
inline const std::vector<Case>& AllCases() {
  using enum Collective;
  using enum Algorithm;
  static const std::vector<Case> cases = {
      {kAllReduce, kRing},    {kAllReduce, kTree},     {kAllReduce, kOneShot},
      {kAllReduce, kTwoShot}, {kReduceScatter, kRing}, {kReduceScatter, kTwoShot},
      {kAllGather, kRing},    {kAllGather, kTwoShot},  {kBroadcast, kRing},
      {kBroadcast, kTree},    {kBroadcast, kTwoShot},  {kReduce, kRing},
      {kReduce, kTree},       {kReduce, kTwoShot},     {kAllReduce, kRecursiveDoubling},
      {kAllToAll, kTwoShot},  {kGather, kTwoShot},     {kScatter, kTwoShot},
  };
  return cases;
}

// And those for ranks on several hosts.
inline const std::vector<Case>& HostsCases() {
  using enum Collective;
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = AllCases();
    for (const Collective c : {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce}) {
      all.push_back({c, Algorithm::kHierarchical});
    }
    return all;
  }();
  return cases;
}

inline bool HasSides(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kAllGather;
}

inline ScheduleRequest RequestOf(const Case& which, int nranks) {
  ScheduleRequest request;
  request.collective = which.collective;
  request.algorithm = which.algorithm;
  request.nranks = nranks;
  return request;
}

inline std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", Name(info.param.collective), Name(info.param.algorithm));
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COLLECTIVES_SCHEDULE_CASES_H_
