// SPDX-License-Identifier: Apache-2.0
//
// What Validate says of side information and of calls in place.
#include "collectives/broken_schedules.h"

namespace inccl {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr Case kRing = {Collective::kAllReduce, Algorithm::kRing};
constexpr Case kTwoShot = {Collective::kAllReduce, Algorithm::kTwoShot};

TEST(Validate, ChecksTheCouplingOfPhases) {
  // Strands of direct, direct: 0-2 side (deal, own, gather), 3-5 data.
  const Schedules whole = Make(kTwoShot, 3, true);
  ASSERT_EQ(whole[1].strands.size(), 6u);
  Schedules broken = whole;
  broken[1].strands[4].waits.clear();
  ExpectRefused(broken,
                {"rank 1: data strand 4 does not wait for the side strand 1 of its window"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[4].waits) wait.lag = 1;
  ExpectRefused(broken,
                {"rank 1: data strand 4 does not wait for the side strand 1 of its window"});
  broken = whole;
  broken[1].strands[2].waits.clear();
  ExpectRefused(broken, {"rank 1: side strand 2 may overtake the data strand 3 by 2 windows"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[2].waits) wait.lag = 3;
  ExpectRefused(broken, {"rank 1: side strand 2 may overtake the data strand 3 by 2 windows"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[2].waits) wait.lag = 0;
  ExpectRefused(broken, {"rank 1: strand 2 waits in the same window for strand 3"});
  // Data on a side lane.
  broken = whole;
  OperandAt(&broken[1], 3, 0, 1).index = 0;
  ExpectRefused(broken, {"rank 1 strand 3 step 0: lane side/0 1 -> 2 in a phase of data lanes"});
}

// Data does not wait for the strand that sends side information: results follow from other ranks'
// data, which wait for it.
TEST(Validate, SideInformationInOneShotIsSafeInPlace) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kOneShot,
                                    Algorithm::kTwoShot, Algorithm::kRecursiveDoubling}) {
    for (const int nranks : {2, 3, 5}) {
      ScheduleRequest request = RequestOf({Collective::kAllReduce, algorithm}, nranks);
      request.side_phases = 1;
      request.side_one_shot = true;
      EXPECT_EQ(Refusal(MakeAll(request)), "accepted") << Name(algorithm) << " " << nranks;
    }
  }
}

TEST(Validate, ChecksTheCouplingOfSegments) {
  // All-gather by direct: 0 side send, 1 side gather, 2 data send, 3 data gather.
  const Schedules gather = Make({Collective::kAllGather, Algorithm::kTwoShot}, 3, true);
  ASSERT_EQ(gather[1].strands.size(), 4u);
  Schedules broken = gather;
  std::swap(broken[1].strands[2].waits, broken[1].strands[3].waits);
  ExpectRefused(broken,
                {"rank 1: data strand 2 does not wait for the side strand 0 of its window"});
  broken = gather;
  broken[1].strands[3].waits.clear();
  ExpectRefused(broken,
                {"rank 1: data strand 3 does not wait for the side strand 1 of its window"});
  broken = gather;
  broken[2].strands[1].waits.clear();
  ExpectRefused(broken, {"rank 2: side strand 1 may overtake the data strand 2 by 2 windows"});
  // Side information of one segment in the place of another's.
  broken = gather;
  for (size_t k = 0; k < 2; ++k) OperandAt(&broken[1], 1, 0, k).chunk = 0;
  ExpectRefused(broken, {"rank 1 strand 1 step 0 window 0: it expects chunk 0", "brings chunk 2"});
  broken = gather;
  broken[0].strands[1].steps.pop_back();
  EXPECT_NE(Refusal(broken), "accepted");
  // Reduce-scatter by direct: 0 side deal, 1 side own, 2 side gather, 3 data deal, 4 data own.
  const Schedules scatter = Make({Collective::kReduceScatter, Algorithm::kTwoShot}, 3, true);
  ASSERT_EQ(scatter[1].strands.size(), 5u);
  broken = scatter;
  std::erase_if(broken[1].strands[3].waits, [](const Dependency& wait) { return wait.lag == 0; });
  ExpectRefused(broken,
                {"rank 1: data strand 3 does not wait for the side strand 2 of its window"});
  broken = scatter;
  std::erase_if(broken[1].strands[4].waits, [](const Dependency& wait) { return wait.lag == 0; });
  ExpectRefused(broken,
                {"rank 1: data strand 4 does not wait for the side strand 1 of its window"});
  // Chunks of both phases are segments.
  broken = scatter;
  for (Schedule& schedule : broken) schedule.phases[0].chunks = 4;
  ExpectRefused(broken, {"rank 0: 4 chunks, but 3 segments"});
}

TEST(Validate, WantsTheSideInformationOfEverySegment) {
  // Rank 1 agrees on its segment without the part of rank 2.
  Schedules schedules = Make({Collective::kReduceScatter, Algorithm::kRing}, 3, true);
  Operands own = OperandsOf(schedules[1], 1, 0);
  own.inputs.pop_back();
  SetStep(&schedules[1], 1, 0, own.inputs, own.outputs);
  EXPECT_NE(Refusal(schedules), "accepted");
  // Rank 2 does not keep the codes of rank 0.
  schedules = Make({Collective::kAllGather, Algorithm::kRing}, 3, true);
  schedules[2].scratch_slots = 1;
  Operands gather = OperandsOf(schedules[2], 1, 0);
  ASSERT_EQ(gather.outputs[0].chunk, 0);
  gather.outputs[0].space = Space::kScratch;
  SetStep(&schedules[2], 1, 0, gather.inputs, gather.outputs);
  ExpectRefused(schedules, {"rank 2: nothing writes output chunk 0 channel 0 of phase 0"});
  // Only what all-reduces, reduce-scatters and all-gathers has side information.
  schedules = Make({Collective::kBroadcast, Algorithm::kRing}, 3);
  for (Schedule& schedule : schedules) {
    schedule.phases.insert(schedule.phases.begin(), {1, 1, LaneClass::kSide});
  }
  ExpectRefused(schedules, {"the phases are not [side information, [more of it,]] data"});
}

TEST(Validate, RefusesOutputsThatMayLieOverUnreadInput) {
  // Send and fold of one-shot in two strands: the fold does not know whether the send has run.
  Schedules schedules = Make({Collective::kAllReduce, Algorithm::kOneShot}, 3);
  Schedule& broken = schedules[1];
  broken.strands.push_back(broken.strands[0]);
  broken.strands[0].steps.pop_back();
  broken.strands[1].steps.erase(broken.strands[1].steps.begin());
  ExpectRefused(schedules,
                {"rank 1 strand 1 step 0 window 0: in place, output chunk 0 channel 0 may be "
                 "written before strand 0 step 0 reads the input"});
  // In one strand, but the wrong way round.
  schedules = Make({Collective::kBroadcast, Algorithm::kTwoShot}, 2);
  Operands operands = OperandsOf(schedules[0], 0, 0);
  SetStep(&schedules[0], 0, 0, operands.inputs, {operands.outputs[1]});
  schedules[0].strands[0].steps.push_back({});
  SetStep(&schedules[0], 0, 1, operands.inputs, {operands.outputs[0]});
  ExpectRefused(schedules,
                {"rank 0 strand 0 step 0 window 0: in place, output chunk 0 channel 0 may be "
                 "written before strand 0 step 1 reads the input"});
  // A strand of the side phase for which no strand waits.
  schedules = Make(kTwoShot, 3, true);
  schedules[2].scratch_slots = 1;
  schedules[2].strands.push_back({0, 0, {Step{}}, {}});
  operands = OperandsOf(schedules[2], 0, 0);
  operands.outputs[0].space = Space::kScratch;
  SetStep(&schedules[2], 6, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 2 strand ", "in place, output chunk ",
                            "may be written before strand 6 step 0 reads the input"});
}

TEST(Validate, WantsASecondSidePhaseToWaitForTheFirst) {
  ScheduleRequest request = RequestOf(kTwoShot, 3);
  request.side_phases = 2;
  Schedules schedules = MakeAll(request);
  ASSERT_EQ(schedules[1].phases.size(), 3u);
  for (Strand& strand : schedules[1].strands) {
    if (strand.phase == 1) std::erase_if(strand.waits, [](const auto& w) { return w.lag == 0; });
  }
  ExpectRefused(schedules, {"rank 1: side strand 3 does not wait for the side strand "});
  // The second's formats say so.
  schedules = MakeAll(request);
  for (Schedule& schedule : schedules) {
    for (Operand& operand : schedule.operands) {
      if (operand.format.form == Form::kSide) operand.format.contributions = 0;
    }
  }
  ExpectRefused(schedules, {"side information of phase 0 does not fit there"});
}

TEST(Validate, WantsEveryRankInTheSideInformation) {
  ScheduleRequest request = RequestOf(kRing, 3);
  request.side_phases = 1;
  request.side_one_shot = true;
  Schedules schedules = MakeAll(request);
  Operands operands = OperandsOf(schedules[1], 1, 0);  // the fold of one-shot, in rank order
  operands.inputs.erase(operands.inputs.begin() + 1);
  SetStep(&schedules[1], 1, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules,
                {"rank 1 strand 1 step 0 window 0: rank 1 is missing in the side (0 + 2)"});
}

}  // namespace
}  // namespace inccl
