// SPDX-License-Identifier: Apache-2.0
//
// Schedules with a phase of side information are proven right by Validate; what the phase costs,
// and which data waits for it.
#include <algorithm>
#include <vector>

#include "collectives/schedule.h"
#include "collectives/schedule_cases.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::AllCases;
using test::Case;
using test::MakeAll;
using test::RequestOf;

Proof Prove(const ScheduleRequest& request, int rows) {
  const Result<Proof> proof = Validate(MakeAll(request), rows);
  EXPECT_TRUE(proof.ok()) << test::Describe(request) << ": " << proof.status().message();
  return proof.ok() ? *proof : Proof{};
}

// Side information may run ahead by a row, so the third is the first that waits; large ones take
// long.
int RowsFor(int n) { return n <= 16 ? 5 : n % 8 == 0 ? 3 : 2; }

// Of segments: an agreement of two messages before the data of a reduce-scatter; the codes of an
// all-gather travel beside the first data, unless one strand needs those of all.
TEST(SideSchedule, OfSegmentsIsProven) {
  for (const Case& which : AllCases()) {
    const bool scatters = which.collective == Collective::kReduceScatter;
    if (!scatters && which.collective != Collective::kAllGather) continue;
    for (int n = 1; n <= test::kProvenRanks && !HasFailure(); ++n) {
      ScheduleRequest request = RequestOf(which, n);
      request.channels = n <= 16 ? 2 : 1;
      const int rows = RowsFor(n);
      const Proof without = Prove(request, 1);
      request.side_phases = 1;
      const Proof with = Prove(request, rows);
      int steps = without.steps;
      if (n > 1 && scatters) steps += 2;
      if (n > 1 && which.collective == Collective::kAllGather &&
          which.algorithm == Algorithm::kRing) {
        steps += 1;
      }
      EXPECT_EQ(with.steps, steps) << test::Describe(request);
      EXPECT_EQ(with.rank_order, without.rank_order) << test::Describe(request);
    }
  }
}

// A second agreement takes as many messages as the first.
TEST(SideSchedule, SecondPhaseIsProven) {
  for (const Case& which : AllCases()) {
    const bool gathers = which.collective == Collective::kAllGather;
    if (which.collective != Collective::kAllReduce &&
        which.collective != Collective::kReduceScatter && !gathers) {
      continue;
    }
    for (const int n : {1, 2, 3, 5, 8}) {
      ScheduleRequest request = RequestOf(which, n);
      request.channels = 2;
      for (const bool one_shot : {false, true}) {
        if (one_shot && which.collective != Collective::kAllReduce) continue;
        request.side_phases = 1;
        request.side_one_shot = one_shot;
        const Proof one = Prove(request, 3);
        request.side_phases = 2;
        const Proof two = Prove(request, RowsFor(n));
        if (!gathers) {
          EXPECT_EQ(two.steps - one.steps, n == 1     ? 0
                                           : one_shot ? 1
                                                      : 2)
              << test::Describe(request);
        }
        EXPECT_EQ(two.rank_order, one.rank_order) << test::Describe(request);
      }
    }
  }
  EXPECT_FALSE(MakeSchedule({{.nranks = 2}, Algorithm::kRing, 1, 3}).ok());
}

TEST(SideSchedule, IsProvenAndCostsOneOrTwoMessages) {
  for (const Case& which : AllCases()) {
    if (which.collective != Collective::kAllReduce) continue;
    for (int n = 1; n <= test::kProvenRanks && !HasFailure(); ++n) {
      ScheduleRequest request = RequestOf(which, n);
      request.channels = n <= 16 ? 2 : 1;
      const Proof without = Prove(request, 1);
      request.side_phases = 1;
      for (bool one_shot : {false, true}) {
        request.side_one_shot = one_shot;
        const Proof with = Prove(request, RowsFor(n));
        const int agreement = n == 1 ? 0 : one_shot ? 1 : 2;
        EXPECT_EQ(with.steps, without.steps + agreement) << test::Describe(request);
        EXPECT_EQ(with.rank_order, without.rank_order) << test::Describe(request);
      }
    }
  }
}

// Every data strand waits for the codes of the segments it works on, and for no others.
TEST(SideSchedule, DataWaitsForItsOwnSegments) {
  ScheduleRequest request = RequestOf({Collective::kAllGather, Algorithm::kTwoShot}, 4);
  request.side_phases = 1;
  // Strands: 0 side send, 1 side gather, 2 data send, 3 data gather.
  const Schedule gather = MakeAll(request)[1];
  ASSERT_EQ(gather.strands.size(), 4u);
  const auto same_row = [](const Strand& strand) {
    std::vector<int> strands;
    for (const Dependency& wait : strand.waits) {
      if (wait.lag == 0) strands.push_back(wait.strand);
    }
    return strands;
  };
  EXPECT_EQ(same_row(gather.strands[2]), std::vector<int>{0});
  EXPECT_EQ(same_row(gather.strands[3]), std::vector<int>{1});
  // 0 side deal, 1 side own, 2 side gather, 3 data deal, 4 data own.
  request = RequestOf({Collective::kReduceScatter, Algorithm::kTwoShot}, 4);
  request.side_phases = 1;
  const Schedule scatter = MakeAll(request)[1];
  ASSERT_EQ(scatter.strands.size(), 5u);
  EXPECT_EQ(same_row(scatter.strands[3]), std::vector<int>{2});
  EXPECT_EQ(same_row(scatter.strands[4]), std::vector<int>{1});
  // The ring has one strand for all segments.
  request.algorithm = Algorithm::kRing;
  EXPECT_EQ(same_row(MakeAll(request)[1].strands[3]), (std::vector<int>{1, 2}));
}

// Of data lanes, per row with a slice per chunk.
size_t DataSlices(const Schedule& schedule) {
  return static_cast<size_t>(std::count_if(
      schedule.operands.begin(), schedule.operands.end(), [&](const Operand& operand) {
        return operand.space == Space::kLane &&
               schedule.lanes[operand.index].lane_class == LaneClass::kData;
      }));
}

TEST(SideSchedule, ComesFirstAndOnItsOwnLanes) {
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kRing}, 4);
  request.side_phases = 1;
  const std::vector<Schedule> with = MakeAll(request);
  request.side_phases = 0;
  const std::vector<Schedule> without = MakeAll(request);
  EXPECT_EQ(with[1].phases[0].lane_class, LaneClass::kSide);
  EXPECT_EQ(with[1].phases[1].lane_class, LaneClass::kData);
  EXPECT_EQ(with[1].strands[0].phase, 0);
  EXPECT_EQ(with[1].strands.back().phase, 1);
  EXPECT_EQ(DataSlices(with[1]), DataSlices(without[1]));
  const auto side =
      std::count_if(with[1].lanes.begin(), with[1].lanes.end(),
                    [](const ScheduleLane& lane) { return lane.lane_class == LaneClass::kSide; });
  EXPECT_EQ(static_cast<size_t>(side), with[1].lanes.size() - without[1].lanes.size());
}

}  // namespace
}  // namespace inccl
