// SPDX-License-Identifier: Apache-2.0
//
// Validate refuses broken schedules; its message names the place and the cause.
#include "verify/validate.h"

#include <functional>
#include <utility>

#include "collectives/broken_schedules.h"

namespace inccl {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr Case kRing = {Collective::kAllReduce, Algorithm::kRing};
constexpr Case kTwoShot = {Collective::kAllReduce, Algorithm::kTwoShot};
constexpr Case kDoubling = {Collective::kAllReduce, Algorithm::kRecursiveDoubling};

TEST(Validate, NamesTheCallInFront) {
  Schedules schedules = Make(kRing, 4);
  schedules[2].rank = 1;
  ExpectRefused(schedules, {"allreduce ring, 4 ranks: schedule 2 is that of rank 1"});
}

TEST(Validate, RefusesNothingAndNoRows) {
  EXPECT_EQ(Validate({}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Validate(Make(kRing, 2), 0).status().code(), Code::kInvalidArgument);
}

TEST(Validate, RefusesSchedulesOfDifferentCalls) {
  Schedules schedules = Make(kRing, 3);
  schedules.pop_back();
  ExpectRefused(schedules, {"rank 0: nranks is 3, but there are 2 schedules"});
  schedules = Make(kRing, 3);
  schedules[1].root = 1;
  ExpectRefused(schedules, {"rank 1: collective, algorithm, root or phases differ"});
  schedules = Make(kRing, 3);
  schedules[2].phases[0].channels = 2;
  ExpectRefused(schedules, {"rank 2: collective, algorithm, root or phases differ"});
}

TEST(Validate, RefusesPhasesThatMakeNoSense) {
  Schedules schedules = Make(kRing, 2);
  for (Schedule& schedule : schedules) schedule.phases[0].lane_class = LaneClass::kSendRecv;
  ExpectRefused(schedules, {"rank 0: the phases are not"});
  schedules = Make(kRing, 2, true);
  for (Schedule& schedule : schedules) schedule.collective = Collective::kReduce;
  ExpectRefused(schedules, {"rank 0: the phases are not"});
  schedules = Make({Collective::kAllGather, Algorithm::kRing}, 2);
  for (Schedule& schedule : schedules) schedule.phases[0].chunks = 3;
  ExpectRefused(schedules, {"rank 0: 3 chunks, but 2 segments"});
  schedules = Make({Collective::kAllToAll, Algorithm::kTwoShot}, 3);
  for (Schedule& schedule : schedules) schedule.phases[0].chunks = 3;
  ExpectRefused(schedules, {"rank 0: 3 chunks, but 9 segments"});
  schedules = Make(kRing, 2);
  schedules[1].strands[0].channel = 1;
  ExpectRefused(schedules, {"rank 1: strand 0 is of phase 0 channel 1, which do not exist"});
}

TEST(Validate, SaysWhichStepWaitsForALostSend) {
  Schedules schedules = Make(kRing, 3);
  auto& steps = schedules[1].strands[0].steps;
  steps.erase(steps.begin());
  ExpectRefused(schedules, {"rank ", "strand 0 step ", "it expects chunk", "brings chunk",
                            "lane data/0 1 -> 2"});
}

TEST(Validate, TellsADeadlockAsAChain) {
  // Both ranks receive before they send.
  Schedules schedules = Make({Collective::kAllReduce, Algorithm::kOneShot}, 2);
  for (Schedule& schedule : schedules) {
    std::vector<Step>& steps = schedule.strands[0].steps;
    ASSERT_EQ(steps.size(), 2u);
    std::swap(steps[0], steps[1]);
  }
  ExpectRefused(schedules,
                {"deadlock with one slot per lane: "
                 "rank 0 strand 0 step 0 window 0 waits for a slice on lane data/1 1 -> 0; "
                 "rank 1 strand 0 step 0 window 0 waits for a slice on lane data/1 0 -> 1; "
                 "round to rank 0 strand 0"});
  // A rank that has ended cannot help.
  schedules = Make({Collective::kReduce, Algorithm::kTwoShot}, 2);
  Strand& root = schedules[0].strands[0];
  root.steps.insert(root.steps.begin(), Step(root.steps[0]));
  const Operand part = OperandAt(&schedules[0], 0, 0, 1);
  schedules[0].scratch_slots = 1;
  SetStep(&schedules[0], 0, 0, {part}, {{Space::kScratch, 0, 0, {Form::kSum, 1}}});
  const Result<Proof> proof = Validate(schedules, 1);
  EXPECT_NE(
      proof.status().message().find("rank 0 strand 0 step 1 window 0 waits for a slice on lane "
                                    "data/0 1 -> 0; rank 1 strand 0 has ended"),
      std::string::npos)
      << proof.status().message();
}

TEST(Validate, FollowsADeadlockThroughRows) {
  // Data (strand 3) folds before it sends: no row of it ever ends, so side information waits two
  // rows later.
  Schedules schedules = Make({Collective::kAllReduce, Algorithm::kOneShot}, 2, true);
  for (Schedule& schedule : schedules) {
    ASSERT_EQ(schedule.strands.size(), 4u);
    std::swap(StepAt(&schedule, 3, 0), StepAt(&schedule, 3, 1));
  }
  ExpectRefused(schedules, {"deadlock",
                            "rank 0 strand 0 step 0 window 2 waits for strand 3 to finish "
                            "window 0; rank 0 strand 3 step 0 window 0 waits for a slice"});
}

TEST(Validate, FindsTheRingThatNeedsTwoSlots) {
  // One lane per neighbour instead of two in turn: every rank's lane is full, no rank can go on.
  Schedules schedules = Make(kRing, 3);
  for (Schedule& schedule : schedules) {
    for (Operand& operand : schedule.operands) {
      if (operand.space == Space::kLane) operand.index %= 2;
    }
    schedule.lanes.resize(2);
  }
  ExpectRefused(schedules, {"deadlock", "rank 0 strand 0 step 1 window 0 waits for a free slot of",
                            "round to rank 0 strand 0"});
}

TEST(Validate, RefusesWaitsWithinARow) {
  // With three groups of slices per row this deadlocks: rank 1 does not take in while it sends.
  Schedules schedules = Make(kTwoShot, 3);
  schedules[1].strands[1].waits.push_back({0, 0});
  ExpectRefused(schedules,
                {"rank 1: strand 1 waits in the same window for strand 0, which is not of "
                 "an earlier phase"});
  // A wait for the row before is none at all.
  schedules[1].strands[1].waits[0].lag = 1;
  EXPECT_EQ(Refusal(schedules), "accepted");
  schedules[1].strands[1].waits[0].strand = 3;
  ExpectRefused(schedules, {"rank 1: strand 1 waits for strand 3, which does not exist"});
}

TEST(Validate, WantsLanesEmptyAtTheEnd) {
  // The last rank of a chain is sent what it does not take: one slice fits into the lane.
  Schedules schedules = Make({Collective::kBroadcast, Algorithm::kRing}, 2);
  std::vector<Step>& steps = schedules[0].strands[0].steps;
  steps.insert(steps.begin(), Step(steps[0]));
  SetStep(&schedules[0], 0, 0, {OperandAt(&schedules[0], 0, 0, 0)},
          {OperandAt(&schedules[0], 0, 0, 1)});
  const Result<Proof> proof = Validate(schedules, 1);
  ASSERT_FALSE(proof.ok());
  EXPECT_NE(
      proof.status().message().find(
          "rank 0 strand 0 step 1: lane data/1 0 -> 1 still holds chunk 0 channel 0 of window 0 "
          "as result at the end"),
      std::string::npos)
      << proof.status().message();
}

TEST(Validate, ChecksWhatASumContains) {
  // Rank 1 adds a sum that has its own part already: declared right, added twice.
  Schedules schedules = Make(kTwoShot, 3);
  Operands operands = OperandsOf(schedules[1], 1, 0);
  operands.inputs[0] = operands.inputs[1];  // of rank 0's part
  SetStep(&schedules[1], 1, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 1 strand 1 step 0: input 0 stands twice"});

  schedules = Make(kDoubling, 4);
  operands = OperandsOf(schedules[2], 0, 1);  // the sum of ranks 2 and 3, both as 2
  operands.inputs = {operands.inputs[0]};
  SetStep(&schedules[2], 0, 1, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 2", "lane data/0 3 -> 2"});

  schedules = Make({Collective::kReduce, Algorithm::kTwoShot}, 3);
  operands = OperandsOf(schedules[0], 0, 0);
  operands.inputs.pop_back();
  SetStep(&schedules[0], 0, 0, operands.inputs, operands.outputs);
  schedules[0].lanes.pop_back();
  ExpectRefused(schedules, {"rank 0: does not consume lane data/0 2 -> 0 of rank 2"});
}

TEST(Validate, NamesTheMissingAndTheRepeatedRank) {
  // Root 0 leaves its own part out.
  Schedules schedules = Make({Collective::kReduce, Algorithm::kTwoShot}, 3);
  Operands operands = OperandsOf(schedules[0], 0, 0);
  operands.inputs.erase(operands.inputs.begin());
  SetStep(&schedules[0], 0, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules,
                {"rank 0 strand 0 step 0 window 0: rank 0 is missing in the output (1 + 2)"
                 " of chunk 0"});
  // Rank 1 adds its own part once more to what it sends to rank 3.
  schedules = Make(kDoubling, 4);
  operands = OperandsOf(schedules[1], 0, 1);
  ASSERT_EQ(operands.outputs.size(), 2u);
  Schedule& one = schedules[1];
  const Operand input = operands.inputs[1];
  SetStep(&one, 0, 1, operands.inputs, {operands.outputs[1]});
  Operand sum3 = operands.outputs[0];
  sum3.format.contributions = 3;
  one.strands[0].steps.insert(one.strands[0].steps.begin() + 2, Step{});
  SetStep(&one, 0, 2, {operands.outputs[1], input}, {sum3});
  ExpectRefused(schedules,
                {"rank 1 strand 0 step 2 window 0: rank 1 is there twice in ((0 + 1) + 1)"});
}

TEST(Validate, ComparesTheOrderOfFoldsOverRanks) {
  Schedules schedules = Make(kDoubling, 4);
  Operands operands = OperandsOf(schedules[3], 0, 2);
  std::swap(operands.inputs[0], operands.inputs[1]);
  SetStep(&schedules[3], 0, 2, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"strand 0 step 2 window 0: chunk 0 is ", " here, but ", "rank 3",
                            "((2 + 3) + (0 + 1))", "((0 + 1) + (2 + 3))"});
}

TEST(Validate, KnowsWhoseSegmentBelongsWhere) {
  const auto move = [](Schedule* schedule, size_t strand, size_t step, uint16_t chunk) {
    for (size_t k = 0; k < 2; ++k) OperandAt(schedule, strand, step, k).chunk = chunk;
  };
  // Ranks 0 and 1 agree on a chunk that is neither's: of rank 1's row, to rank 2.
  Schedules schedules = Make({Collective::kAllToAll, Algorithm::kTwoShot}, 3);
  move(&schedules[0], 0, 0, 5);
  ExpectRefused(schedules, {"rank 0 strand 0 step 0 window 0: this rank has no input for chunk 5"});
  // Rank 0 sends rank 1 what is meant for rank 2.
  move(&schedules[0], 0, 0, 2);
  move(&schedules[1], 1, 0, 2);
  ExpectRefused(schedules,
                {"rank 1 strand 1 step 0 window 0: this rank has no output for chunk 2"});

  // Only the root of a gather has an output, only the root of a scatter an input.
  schedules = Make({Collective::kGather, Algorithm::kTwoShot}, 3);
  for (Schedule& schedule : schedules) schedule.root = 1;
  ExpectRefused(schedules,
                {"rank 0 strand 0 step 0 window 0: this rank has no output for chunk 0"});
  schedules = Make({Collective::kScatter, Algorithm::kTwoShot}, 3);
  for (Schedule& schedule : schedules) schedule.root = 1;
  ExpectRefused(schedules, {"rank 0 strand 0 step 0 window 0: this rank has no input for chunk 1"});

  // The root takes the segment of rank 1 for its own.
  schedules = Make({Collective::kGather, Algorithm::kTwoShot}, 2);
  move(&schedules[0], 0, 1, 0);
  schedules[0].strands[0].steps.erase(schedules[0].strands[0].steps.begin());
  move(&schedules[1], 0, 0, 0);
  ExpectRefused(schedules, {"rank 1 strand 0 step 0 window 0: this rank has no input for chunk 0"});
}

TEST(Validate, SeesThatDirectIsNoLongerInRankOrder) {
  Schedules schedules = Make(kTwoShot, 4);
  EXPECT_TRUE(Validate(schedules)->rank_order);
  Operands operands = OperandsOf(schedules[3], 1, 0);
  std::swap(operands.inputs[1], operands.inputs[2]);
  SetStep(&schedules[3], 1, 0, operands.inputs, operands.outputs);
  const Result<Proof> proof = Validate(schedules);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_FALSE(proof->rank_order);
}

TEST(Validate, ChecksWhereOperandsMayStand) {
  const Schedules whole = Make(kRing, 3);
  auto with = [&](size_t step, size_t k, const std::function<void(Operand*)>& change) {
    Schedules broken = whole;
    change(&OperandAt(&broken[1], 0, step, k));
    return broken;
  };
  // Step 1 is L3 sum(2) <- L0 sum(1) + input; step 2 has outputs L1 result and output.
  ExpectRefused(with(1, 0, [](Operand* o) { o->space = Space::kOutput; }),
                {"rank 1 strand 0 step 1: the output is read"});
  ExpectRefused(with(1, 2, [](Operand* o) { o->space = Space::kInput; }),
                {"rank 1 strand 0 step 1: the input is written"});
  ExpectRefused(with(1, 0, [](Operand* o) { o->index = 1; }),
                {"rank 1 strand 0 step 1: it reads lane data/0 1 -> 2, which this rank produces"});
  ExpectRefused(with(1, 2, [](Operand* o) { o->index = 0; }),
                {"rank 1 strand 0 step 1: it writes lane data/0 0 -> 1, which this rank consumes"});
  ExpectRefused(with(1, 0, [](Operand* o) { o->index = 4; }),
                {"rank 1 strand 0 step 1: lane 4 of 4"});
  ExpectRefused(with(1, 0, [](Operand* o) { o->chunk = 3; }),
                {"rank 1 strand 0 step 1: chunk 3 of 3"});
  ExpectRefused(with(1, 0, [](Operand* o) { o->chunk = 1; }),
                {"rank 1 strand 0 step 1: operands of chunks 1 and 2"});
  ExpectRefused(with(1, 1, [](Operand* o) { o->format.form = Form::kSum; }),
                {"rank 1 strand 0 step 1: form sum(0) does not fit there"});
  ExpectRefused(with(1, 2, [](Operand* o) { o->format.form = Form::kSide; }),
                {"rank 1 strand 0 step 1: form side does not fit there"});
  ExpectRefused(with(2, 3,
                     [](Operand* o) {
                       o->format = {Form::kResult, 0};
                     }),
                {"rank 1 strand 0 step 2: form result does not fit there"});
  ExpectRefused(with(2, 3, [](Operand* o) { o->format.contributions = 3; }),
                {"rank 1 strand 0 step 2: no sum, but with 3 contributions"});
  ExpectRefused(with(0, 1, [](Operand* o) { o->format.contributions = 4; }),
                {"rank 1 strand 0 step 0: a sum with 4 contributions"});
  ExpectRefused(with(1, 0,
                     [](Operand* o) {
                       o->format = {Form::kResult, 0};
                     }),
                {"rank 1 strand 0 step 1: a result is folded with something else"});
  ExpectRefused(with(1, 0, [](Operand* o) { o->space = Space::kScratch; }),
                {"rank 1 strand 0 step 1: scratch slot 0 of 0"});
  Schedules broken = whole;
  StepAt(&broken[1], 0, 1).first_operand = 1000;
  ExpectRefused(broken, {"rank 1 strand 0 step 1: its operands do not exist"});
  broken = whole;
  broken[1].strands.push_back({});
  ExpectRefused(broken, {"rank 1: strand 1 has no steps"});
}

TEST(Validate, ChecksScratch) {
  // The last round of rank 0 reads the slot that is written in the round before.
  Schedules schedules = Make(kDoubling, 4);
  schedules[0].scratch_slots = 2;
  OperandAt(&schedules[0], 0, 2, 0).index = 1;
  ExpectRefused(schedules, {"rank 0 strand 0 step 2 window 0: scratch slot 1 is read before it is "
                            "written in this window"});
  schedules = Make(kDoubling, 4);
  OperandAt(&schedules[0], 0, 2, 0).format.contributions = 3;
  ExpectRefused(schedules,
                {"rank 0 strand 0 step 2 window 0: it expects chunk 0 channel 0 of window 0 "
                 "as sum(3), but scratch slot 0 brings chunk 0 channel 0 of window 0 as "
                 "sum(2)"});
  // A second strand with the same slot.
  schedules = Make(kDoubling, 4);
  Strand second = schedules[0].strands[0];
  second.steps.erase(second.steps.begin(), second.steps.begin() + 2);
  schedules[0].strands.push_back(second);
  ExpectRefused(schedules, {"rank 0 strand 1 step 0", "is used by strands 0 and 1"});
}

TEST(Validate, ChecksLaneEnds) {
  Schedules schedules = Make(kRing, 3);
  // A second strand that receives the last chunk.
  Strand second = schedules[1].strands[0];
  second.steps.erase(second.steps.begin(), second.steps.end() - 1);
  schedules[1].strands[0].steps.pop_back();
  schedules[1].strands.push_back(second);
  ExpectRefused(schedules, {"rank 1 strand 1 step 0: lane data/1 0 -> 1 is also used by strand 0"});

  schedules = Make(kRing, 3);
  schedules[1].lanes.push_back({LaneClass::kData, 7, 1, {0}});
  ExpectRefused(schedules, {"rank 1: no strand uses lane data/7 1 -> 0"});
  schedules[1].lanes.back().consumers = {1};
  ExpectRefused(schedules, {"rank 1: lane 4 (data/7 1 -> 1) has impossible ends"});
  schedules[1].lanes.back() = {LaneClass::kData, 7, 0, {2}};
  ExpectRefused(schedules, {"rank 1: lane 4 (data/7 0 -> 2) does not end here"});

  schedules = Make(kRing, 3);
  schedules[1].lanes[3] = schedules[1].lanes[1];
  ExpectRefused(schedules, {"rank 1: lane data/0 1 -> 2 stands twice in its list"});
  // Unicast and multicast from one rank, told apart by consumers only.
  schedules = Make(kTwoShot, 3);
  for (Schedule& schedule : schedules) {
    for (ScheduleLane& lane : schedule.lanes) lane.channel = 0;
  }
  ExpectRefused(schedules, {"rank 0: another lane from rank ", "has class and channel of lane "});
}

TEST(Validate, ChecksWhoHasInputsAndOutputs) {
  Schedules schedules = Make({Collective::kReduce, Algorithm::kTwoShot}, 2);
  Operands operands = OperandsOf(schedules[1], 0, 0);
  operands.outputs.push_back({Space::kOutput, 0, 0, {Form::kOutput, 0}});
  SetStep(&schedules[1], 0, 0, operands.inputs, operands.outputs);
  ExpectRefused(schedules, {"rank 1 strand 0 step 0 window 0: rank 0 is missing in the output 1"});

  schedules = Make({Collective::kBroadcast, Algorithm::kTwoShot}, 2);
  const Operand input = {Space::kInput, 0, 0, {Form::kInput, 0}};
  const Operand output = {Space::kOutput, 0, 0, {Form::kOutput, 0}};
  schedules[1].strands.insert(schedules[1].strands.begin(), Strand{0, 0, {Step{}}, {}});
  SetStep(&schedules[1], 0, 0, {input}, {output});
  ExpectRefused(schedules, {"rank 1 strand 0 step 0 window 0: this rank has no input for chunk 0"});

  // The result of a chunk goes to a rank that has no output for it.
  schedules = Make({Collective::kReduce, Algorithm::kRing}, 2);
  schedules[0].lanes.push_back({LaneClass::kData, 1, 0, {1}});
  schedules[1].lanes.push_back({LaneClass::kData, 1, 0, {1}});
  operands = OperandsOf(schedules[0], 0, 0);
  const Operand result = {Space::kLane, 1, 0, {Form::kResult, 0}};
  SetStep(&schedules[0], 0, 0, operands.inputs, {result, output});
  schedules[1].strands.push_back({0, 0, {Step{}}, {}});
  SetStep(&schedules[1], 1, 0, {result}, {output});
  ExpectRefused(schedules,
                {"rank 1 strand 1 step 0 window 0: this rank has no output for chunk 0"});

  // All-gather: everything but the owner's input is wrong.
  schedules = Make({Collective::kAllGather, Algorithm::kTwoShot}, 2);
  OperandAt(&schedules[1], 0, 0, 1).format = {Form::kSum, 1};
  ExpectRefused(schedules, {"rank 1 strand 0 step 0 window 0: a sum where nothing is reduced"});
}

TEST(Validate, ChecksThatOutputsAreWrittenOnce) {
  Schedules schedules = Make(kTwoShot, 3);
  Operands operands = OperandsOf(schedules[2], 1, 0);
  ASSERT_EQ(operands.outputs.size(), 2u);
  SetStep(&schedules[2], 1, 0, operands.inputs, {operands.outputs[0]});
  ExpectRefused(schedules, {"rank 2: nothing writes output chunk 2 channel 0 of phase 0"});

  schedules = Make({Collective::kAllReduce, Algorithm::kTree}, 1);
  operands = OperandsOf(schedules[0], 0, 0);
  const Operand scratch = {Space::kScratch, 0, 0, {Form::kSum, 1}};
  schedules[0].scratch_slots = 1;
  schedules[0].strands[0].steps.resize(3);
  SetStep(&schedules[0], 0, 0, operands.inputs, {scratch});
  SetStep(&schedules[0], 0, 1, {scratch}, operands.outputs);
  SetStep(&schedules[0], 0, 2, {scratch}, operands.outputs);
  ExpectRefused(schedules, {"rank 0 strand 0 step 2 window 0: output chunk 0 channel 0 is written "
                            "twice"});
}

}  // namespace
}  // namespace inccl
