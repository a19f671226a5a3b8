// SPDX-License-Identifier: Apache-2.0
//
// What Validate says of side information and of calls in place.
#include "collectives/broken_schedules.h"

namespace inccl {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr Case kRing = {Collective::kAllReduce, Algorithm::kRing};
constexpr Case kDirect = {Collective::kAllReduce, Algorithm::kDirect};

TEST(Validate, ChecksTheCouplingOfPhases) {
  // Strands of direct, direct: 0-2 side (deal, own, gather), 3-5 data.
  const Schedules whole = Make(kDirect, 3, true);
  ASSERT_EQ(whole[1].strands.size(), 6u);
  Schedules broken = whole;
  broken[1].strands[4].waits.clear();
  ExpectRefused(broken, {"rank 1: data strand 4 does not wait for the side strand 1 of its row"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[4].waits) wait.lag = 1;
  ExpectRefused(broken, {"rank 1: data strand 4 does not wait for the side strand 1 of its row"});
  broken = whole;
  broken[1].strands[2].waits.clear();
  ExpectRefused(broken, {"rank 1: side strand 2 may overtake the data strand 3 by 2 rows"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[2].waits) wait.lag = 3;
  ExpectRefused(broken, {"rank 1: side strand 2 may overtake the data strand 3 by 2 rows"});
  broken = whole;
  for (Dependency& wait : broken[1].strands[2].waits) wait.lag = 0;
  ExpectRefused(broken, {"rank 1: strand 2 waits in the same row for strand 3"});
  // Data on a side lane.
  broken = whole;
  OperandAt(&broken[1], 3, 0, 1).index = 0;
  ExpectRefused(broken, {"rank 1 strand 3 step 0: lane side/0 1 -> 2 in a phase of data lanes"});
}

TEST(Validate, RefusesOutputsThatMayLieOverUnreadInput) {
  // Send and fold of one-shot in two strands: the fold does not know whether the send has run.
  Schedules schedules = Make({Collective::kAllReduce, Algorithm::kDirectOneShot}, 3);
  Schedule& broken = schedules[1];
  broken.strands.push_back(broken.strands[0]);
  broken.strands[0].steps.pop_back();
  broken.strands[1].steps.erase(broken.strands[1].steps.begin());
  ExpectRefused(schedules,
                {"rank 1 strand 1 step 0 row 0: in place, output chunk 0 channel 0 may be "
                 "written before strand 0 step 0 reads the input"});
  // In one strand, but the wrong way round.
  schedules = Make({Collective::kBroadcast, Algorithm::kDirect}, 2);
  Operands operands = OperandsOf(schedules[0], 0, 0);
  SetStep(&schedules[0], 0, 0, operands.inputs, {operands.outputs[1]});
  schedules[0].strands[0].steps.push_back({});
  SetStep(&schedules[0], 0, 1, operands.inputs, {operands.outputs[0]});
  ExpectRefused(schedules,
                {"rank 0 strand 0 step 0 row 0: in place, output chunk 0 channel 0 may be "
                 "written before strand 0 step 1 reads the input"});
  // A strand of the side phase for which nobody waits.
  schedules = Make(kDirect, 3, true);
  schedules[2].scratch_slots = 1;
  schedules[2].strands.push_back({0, 0, {Step{}}, {}});
  operands = OperandsOf(schedules[2], 0, 0);
  operands.outputs[0].space = Space::kScratch;
  SetStep(&schedules[2], 6, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 2 strand ", "in place, output chunk ",
                            "may be written before strand 6 step 0 reads the input"});
}

TEST(Validate, WantsEveryRankInTheSideInformation) {
  ScheduleRequest request = RequestOf(kRing, 3);
  request.side_phase = request.side_one_shot = true;
  Schedules schedules = MakeAll(request);
  Operands operands = OperandsOf(schedules[1], 0, 1);  // the fold of one-shot, in rank order
  operands.inputs.erase(operands.inputs.begin() + 1);
  SetStep(&schedules[1], 0, 1, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 1 strand 0 step 1 row 0: rank 1 is missing in the side (0 + 2)"});
}

}  // namespace
}  // namespace inccl
