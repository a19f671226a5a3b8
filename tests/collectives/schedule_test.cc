// SPDX-License-Identifier: Apache-2.0
//
// Every schedule of every collective and algorithm is proven right by Validate.
#include "collectives/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace inccl {
namespace {

std::vector<Schedule> MakeAll(ScheduleRequest request) {
  std::vector<Schedule> schedules;
  for (request.rank = 0; request.rank < request.nranks; ++request.rank) {
    Result<Schedule> schedule = MakeSchedule(request);
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    if (schedule.ok()) schedules.push_back(std::move(*schedule));
  }
  return schedules;
}

struct Case {
  Collective collective;
  Algorithm algorithm;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int c = 0; c < kCollectives; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const Case one = {static_cast<Collective>(c), static_cast<Algorithm>(a)};
      if (HasSchedule(one.collective, one.algorithm, 4)) cases.push_back(one);
    }
  }
  return cases;
}

bool Rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

class EverySchedule : public testing::TestWithParam<Case> {
 protected:
  ScheduleRequest Request(int nranks) const {
    ScheduleRequest request;
    request.collective = GetParam().collective;
    request.algorithm = GetParam().algorithm;
    request.nranks = nranks;
    return request;
  }
  static Proof Prove(const ScheduleRequest& request, int rows = 3) {
    const Result<Proof> proof = Validate(MakeAll(request), rows);
    EXPECT_TRUE(proof.ok()) << fmt::format("n={} root={} channels={} side={}{}: ", request.nranks,
                                           request.root, request.channels, request.side_phase,
                                           request.side_one_shot)
                            << proof.status().message();
    return proof.ok() ? *proof : Proof{};
  }
};

TEST_P(EverySchedule, IsProvenUpTo64Ranks) {
  for (int n = 1; n <= 64; ++n) {
    ScheduleRequest request = Request(n);
    const std::set<int> roots =
        Rooted(request.collective) ? std::set<int>{0, 1 % n, n / 2, n - 1} : std::set<int>{0};
    for (int root : roots) {
      request.root = root;
      Prove(request);
      if (HasFailure()) return;
    }
  }
}

TEST_P(EverySchedule, IsProvenWithEveryRoot) {
  for (int n : {2, 3, 8, 13}) {
    ScheduleRequest request = Request(n);
    for (request.root = 0; request.root < n; ++request.root) Prove(request);
  }
}

TEST_P(EverySchedule, IsProvenWithChannels) {
  for (int n = 1; n <= 64; ++n) {
    ScheduleRequest request = Request(n);
    request.channels = 2;
    Prove(request);
    if (HasFailure()) return;
  }
  for (int n : {1, 2, 3, 5, 8}) {
    ScheduleRequest request = Request(n);
    for (int channels : {8, kMaxChannels}) {
      request.channels = channels;
      Prove(request);
    }
  }
}

TEST_P(EverySchedule, IsProvenForManyRowsAndForOne) {
  for (int rows : {1, 2, 7}) {
    for (int n : {2, 3, 6}) Prove(Request(n), rows);
  }
}

TEST_P(EverySchedule, IsProvenWithASidePhase) {
  if (GetParam().collective != Collective::kAllReduce) GTEST_SKIP() << "all-reduce only";
  for (int n = 1; n <= 64; ++n) {
    ScheduleRequest request = Request(n);
    request.side_phase = true;
    for (bool one_shot : {false, true}) {
      request.side_one_shot = one_shot;
      request.channels = n <= 16 ? 2 : 1;
      const Proof with = Prove(request, n <= 16 ? 5 : 3);
      request.side_phase = false;
      const Proof without = Prove(request);
      request.side_phase = true;
      const int agreement = n == 1 ? 0 : one_shot ? 1 : 2;
      EXPECT_EQ(with.steps, without.steps + agreement) << n;
      EXPECT_EQ(with.rank_order, without.rank_order) << n;
      if (HasFailure()) return;
    }
  }
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", Name(info.param.collective), Name(info.param.algorithm));
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule, testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace inccl
