// SPDX-License-Identifier: Apache-2.0
//
// What people see of a schedule.
#include <algorithm>
#include <string>
#include <vector>

#include "collectives/schedule.h"
#include "collectives/schedule_cases.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::MakeAll;
using test::RequestOf;

TEST(DumpText, OfARing) {
  const std::vector<Schedule> schedules =
      MakeAll(RequestOf({Collective::kAllReduce, Algorithm::kRing}, 3));
  EXPECT_EQ(DumpText(schedules[0]),
            R"(allreduce ring, 3 ranks: rank 0
phase 0: data, chunks 3, channels 1
L0: data/0 2 -> 0
L1: data/0 0 -> 1
L2: data/1 2 -> 0
L3: data/1 0 -> 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       2  -        1        L1 sum(1) <- input
     1  recv-reduce-send           1  2        1        L3 sum(2) <- L0 sum(1) + input
     2  recv-reduce-copy-send      0  2        1        L1 result, output <- L2 sum(2) + input
     3  recv-copy-send             2  2        1        L3 result, output <- L0 result
     4  recv                       1  2        -        output <- L2 result
)");
}

TEST(DumpText, OfScratchAndOfARankOutside) {
  const std::vector<Schedule> schedules =
      MakeAll(RequestOf({Collective::kAllReduce, Algorithm::kRecursiveDoubling}, 3));
  EXPECT_EQ(DumpText(schedules[0]),
            R"(allreduce recursive_doubling, 3 ranks: rank 0
phase 0: data, chunks 1, channels 1
L0: data/0 1 -> 0
L1: data/1 0 -> 1
L2: data/0 0 -> 2
L3: data/0 2 -> 0
scratch: 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  recv-reduce-keep-send      0  1        2        L2 sum(2), S0 sum(2) <- input + L0 sum(1)
     1  recv-reduce-copy-send      0  2        1        L1 result, output <- S0 sum(2) + L3 sum(1)
)");
  EXPECT_EQ(DumpText(schedules[1]),
            R"(allreduce recursive_doubling, 3 ranks: rank 1
phase 0: data, chunks 1, channels 1
L0: data/0 1 -> 0
L1: data/1 0 -> 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       0  -        0        L0 sum(1) <- input
     1  recv                       0  0        -        output <- L1 result
)");
}

TEST(DumpText, OfAMulticastFromARoot) {
  ScheduleRequest request = RequestOf({Collective::kBroadcast, Algorithm::kTwoShot}, 6);
  request.root = 3;
  EXPECT_EQ(DumpText(MakeAll(request)[3]),
            R"(broadcast direct, 6 ranks: rank 3, root 3
phase 0: data, chunks 1, channels 1
L0: data/1 3 -> 0-2,4,5
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  copy-send                  0  -        0-2,4,5  L0 result, output <- input
)");
}

TEST(DumpText, OfSegmentsFromEachToEach) {
  EXPECT_EQ(DumpText(MakeAll(RequestOf({Collective::kAllToAll, Algorithm::kTwoShot}, 3))[1]),
            R"(alltoall direct, 3 ranks: rank 1
phase 0: data, chunks 9, channels 1
L0: data/0 1 -> 2
L1: data/0 0 -> 1
L2: data/0 1 -> 0
L3: data/0 2 -> 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       5  -        2        L0 result <- input
     1  send                       3  -        0        L2 result <- input
     2  copy                       4  -        -        output <- input
strand 1: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  recv                       1  0        -        output <- L1 result
     1  recv                       7  2        -        output <- L3 result
)");
}

TEST(DumpText, OfSegmentsToAndFromARoot) {
  ScheduleRequest request = RequestOf({Collective::kGather, Algorithm::kTwoShot}, 3);
  request.root = 2;
  EXPECT_EQ(DumpText(MakeAll(request)[2]),
            R"(gather direct, 3 ranks: rank 2, root 2
phase 0: data, chunks 3, channels 1
L0: data/0 0 -> 2
L1: data/0 1 -> 2
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  copy                       2  -        -        output <- input
     1  recv                       0  0        -        output <- L0 result
     2  recv                       1  1        -        output <- L1 result
)");
  request.collective = Collective::kScatter;
  EXPECT_EQ(DumpText(MakeAll(request)[2]),
            R"(scatter direct, 3 ranks: rank 2, root 2
phase 0: data, chunks 3, channels 1
L0: data/0 2 -> 0
L1: data/0 2 -> 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       0  -        0        L0 result <- input
     1  send                       1  -        1        L1 result <- input
     2  copy                       2  -        -        output <- input
)");
}

TEST(DumpText, OfTheAgreementOfSideInformation) {
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kOneShot}, 2);
  request.side_phases = 1;
  request.side_one_shot = true;
  EXPECT_EQ(DumpText(MakeAll(request)[1]),
            R"(allreduce direct_one_shot, 2 ranks: rank 1
phase 0: side, chunks 1, channels 1
phase 1: data, chunks 1, channels 1
L0: side/1 0 -> 1
L1: side/1 1 -> 0
L2: data/1 0 -> 1
L3: data/1 1 -> 0
strand 0: phase 0, channel 0; window r waits for window r-2 of strand 2
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       0  -        0        L1 side <- input
strand 1: phase 0, channel 0; window r waits for window r-2 of strand 2
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  recv-reduce-copy           0  0        -        output side <- L0 side + input
strand 2: phase 1, channel 0; window r waits for window r of strand 1
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  send                       0  -        0        L3 sum(1) <- input
     1  recv-reduce-copy           0  0        -        output <- L2 sum(1) + input
)");
}

TEST(DumpText, OfOneRank) {
  EXPECT_EQ(DumpText(MakeAll(RequestOf({Collective::kAllGather, Algorithm::kRing}, 1))[0]),
            R"(allgather ring, 1 rank: rank 0
phase 0: data, chunks 1, channels 1
strand 0: phase 0, channel 0
  step  name                   chunk  from     to       outputs <- fold(inputs)
     0  copy                       0  -        -        output <- input
)");
}

TEST(DumpDot, OfTwoShots) {
  EXPECT_EQ(DumpDot(MakeAll(RequestOf({Collective::kAllReduce, Algorithm::kTwoShot}, 2))),
            R"dot(digraph schedule {
  rankdir=LR;
  node [shape=box];
  label="allreduce direct, 2 ranks";
  subgraph cluster_0 {
    label="rank 0";
    r0s0t0 [label="send\nchunk 1"];
    r0s1t0 [label="recv-reduce-copy-send\nchunk 0"];
    r0s2t0 [label="recv\nchunk 1"];
  }
  subgraph cluster_1 {
    label="rank 1";
    r1s0t0 [label="send\nchunk 0"];
    r1s1t0 [label="recv-reduce-copy-send\nchunk 1"];
    r1s2t0 [label="recv\nchunk 0"];
  }
  r1s0t0 -> r0s1t0 [label="sum(1)"];
  r1s1t0 -> r0s2t0 [label="result"];
  r0s0t0 -> r1s1t0 [label="sum(1)"];
  r0s1t0 -> r1s2t0 [label="result"];
}
)dot");
}

size_t Count(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(DumpDot, HasANodePerStepAndAnArrowPerMessage) {
  for (const test::Case& which : test::AllCases()) {
    ScheduleRequest request = RequestOf(which, 5);
    const bool side = which.collective == Collective::kAllReduce ||
                      which.collective == Collective::kReduceScatter ||
                      which.collective == Collective::kAllGather;
    request.side_phases = side ? 1 : 0;
    const std::vector<Schedule> schedules = MakeAll(request);
    size_t steps = 0, messages = 0, inner = 0, waits = 0;
    for (const Schedule& schedule : schedules) {
      for (const Strand& strand : schedule.strands) {
        steps += strand.steps.size();
        inner += strand.steps.size() - 1;
        waits += strand.waits.size();
        for (const Step& step : strand.steps) {
          const auto first = schedule.operands.begin() + step.first_operand;
          messages += static_cast<size_t>(
              std::count_if(first, first + step.inputs,
                            [](const Operand& operand) { return operand.space == Space::kLane; }));
        }
      }
    }
    const std::string dot = DumpDot(schedules);
    EXPECT_EQ(Count(dot, "\\nchunk "), steps) << test::Describe(request);
    EXPECT_EQ(Count(dot, " -> "), messages + inner + waits) << test::Describe(request);
    EXPECT_EQ(Count(dot, "style=dotted"), inner) << test::Describe(request);
    EXPECT_EQ(Count(dot, "style=dashed"), waits) << test::Describe(request);
  }
}

}  // namespace
}  // namespace inccl
