// SPDX-License-Identifier: Apache-2.0
//
// Every schedule of every collective and algorithm is proven right by Validate, and its steps and
// its traffic are those of the formulas in docs/algorithms.md.
#include "collectives/schedule.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "collectives/schedule_cases.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::AllCases;
using test::Case;
using test::CaseName;
using test::MakeAll;
using test::RequestOf;

Proof Prove(const ScheduleRequest& request, int rows = 3) {
  const Result<Proof> proof = Validate(MakeAll(request), rows);
  EXPECT_TRUE(proof.ok()) << test::Describe(request) << ": " << proof.status().message();
  return proof.ok() ? *proof : Proof{};
}

int FloorLog2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n))) - 1; }

// What one rank sends and receives per row, in units of all chunks together.
struct Traffic {
  double sent = 0;     // a multicast counts once
  double unicast = 0;  // a multicast counts once per consumer
  double received = 0;
  int largest_sum = 0;  // most contributions of a partial sum it sends
};

Traffic TrafficOf(const Schedule& schedule) {
  Traffic traffic;
  for (const Strand& strand : schedule.strands) {
    const Phase& phase = schedule.phases[strand.phase];
    if (phase.lane_class != LaneClass::kData) continue;
    const double share = 1.0 / (phase.chunks * phase.channels);
    for (const Step& step : strand.steps) {
      for (uint32_t i = 0; i < uint32_t{step.inputs} + step.outputs; ++i) {
        const Operand& operand = schedule.operands[step.first_operand + i];
        if (operand.space != Space::kLane) continue;
        const ScheduleLane& lane = schedule.lanes[operand.index];
        if (i < step.inputs) {
          traffic.received += share;
          continue;
        }
        traffic.sent += share;
        traffic.unicast += share * static_cast<double>(lane.consumers.size());
        traffic.largest_sum = std::max<int>(traffic.largest_sum, operand.format.contributions);
      }
    }
  }
  return traffic;
}

class EverySchedule : public testing::TestWithParam<Case> {};

TEST_P(EverySchedule, IsProvenUpTo64Ranks) {
  for (int n = 1; n <= test::kProvenRanks && !HasFailure(); ++n) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    std::set<int> roots = {0};
    if (HasRoot(request.collective)) roots = {0, 1 % n, n / 2, n - 1};
    for (int root : roots) {
      request.root = root;
      Prove(request);
    }
  }
}

TEST_P(EverySchedule, IsProvenWithEveryRoot) {
  for (int n : {2, 3, 8, 13}) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    for (request.root = 0; request.root < n; ++request.root) Prove(request);
  }
}

TEST_P(EverySchedule, IsProvenWithChannels) {
  for (int n = 1; n <= test::kProvenRanks && !HasFailure(); ++n) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    request.channels = 2;
    Prove(request);
  }
  for (int n : {1, 2, 3, 5, 8}) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    for (int channels : {8, kMaxChannels}) {
      request.channels = channels;
      Prove(request);
    }
  }
}

TEST_P(EverySchedule, IsProvenForManyRowsAndForOne) {
  for (int rows : {1, 2, 7}) {
    for (int n : {2, 3, 6}) Prove(RequestOf(GetParam(), n), rows);
  }
}

// A channel is one of several equal copies: as many lanes, strands and scratch slots each, and the
// same traffic in sum.
TEST_P(EverySchedule, ChannelsAreCopies) {
  for (int n : {2, 5, 8}) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    const std::vector<Schedule> one = MakeAll(request);
    request.channels = 3;
    const std::vector<Schedule> three = MakeAll(request);
    for (size_t r = 0; r < one.size(); ++r) {
      EXPECT_EQ(three[r].lanes.size(), 3 * one[r].lanes.size());
      EXPECT_EQ(three[r].strands.size(), 3 * one[r].strands.size());
      EXPECT_EQ(three[r].scratch_slots, 3 * one[r].scratch_slots);
      EXPECT_NEAR(TrafficOf(three[r]).unicast, TrafficOf(one[r]).unicast, 1e-9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule, testing::ValuesIn(AllCases()), CaseName);

// The formulas of docs/algorithms.md: messages, traffic, widest partial sum, order.
struct Expected {
  int steps = 0;
  bool rank_order = true;
  Traffic most;  // of any rank
};

Expected ExpectedOf(const Case& which, int n) {
  const double d = n, one = n > 1;
  const int log = FloorLog2(n);
  const int p = 1 << log;
  switch (which.collective) {
    case Collective::kAllReduce:
      switch (which.algorithm) {
        case Algorithm::kRing: {
          const double part = 2 * (d - 1) / d;
          return {2 * (n - 1), n == 1, {part, part, part, n - 1}};
        }
        case Algorithm::kTree: {
          // n = 2: half up, half down. n = 3: two ranks are roots, with both others below them.
          const double least = n == 1 ? 0 : n == 2 ? 1 : n == 3 ? 1.5 : 2;
          return {2 * log, n <= 3, {n <= 3 ? double(n > 1) : 1.5, least, least, p - 1}};
        }
        case Algorithm::kRecursiveDoubling: {
          const bool odd = p != n;
          const double sent = log + (odd ? 1 : 0);
          // The wider half of the last exchange: the lower one, which has the pairs.
          const int half = n == 1 ? 0 : p / 2 + std::min(n - p, p / 2);
          // A message into a pair and one out of another, if there are two pairs that no exchange
          // shortcuts: places u and p-1-u.
          const int steps = log + (odd ? 1 : 0) + (n - p > p / 2 ? 1 : 0);
          return {steps, n <= 3, {sent, sent, sent, half}};
        }
        case Algorithm::kOneShot: return {n > 1, true, {double(n > 1), d - 1, d - 1, n > 1}};
        case Algorithm::kTwoShot:
          return {n > 1 ? 2 : 0, true, {double(n > 1), 2 * (d - 1) / d, 2 * (d - 1) / d, n > 1}};
        case Algorithm::kHierarchical:  // on one host there is none
        case Algorithm::kEnd: break;
      }
      break;
    case Collective::kReduceScatter: {
      const double part = (d - 1) / d;
      if (which.algorithm == Algorithm::kRing) {
        return {n - 1, n == 1, {part, part, part, n - 1}};
      }
      return {n > 1, true, {part, part, part, n > 1}};
    }
    case Collective::kAllGather: {
      const double part = (d - 1) / d;
      if (which.algorithm == Algorithm::kRing) return {n - 1, true, {part, part, part, 0}};
      return {n > 1, true, {n > 1 ? 1 / d : 0, part, part, 0}};
    }
    case Collective::kBroadcast: {
      if (which.algorithm == Algorithm::kRing) return {n - 1, true, {one, one, one, 0}};
      if (which.algorithm == Algorithm::kTree) {
        return {log, true, {one, double(std::min(n - 1, 2)), one, 0}};
      }
      return {n > 1, true, {one, d - 1, one, 0}};
    }
    case Collective::kReduce: {  // to root 0
      if (which.algorithm == Algorithm::kRing) return {n - 1, n == 1, {one, one, one, n - 1}};
      if (which.algorithm == Algorithm::kTree) {
        // The left subtree of a complete tree: full, or short of ranks in its last level.
        const int left = n == 1 ? 0 : std::min(p - 1, n - p / 2);
        return {log, n <= 3, {one, one, double(std::min(n - 1, 2)), left}};
      }
      return {n > 1, true, {one, one, d - 1, n > 1}};
    }
    case Collective::kAllToAll: {  // in units of n rows of n segments
      const double part = (d - 1) / d / d;
      return {n > 1, true, {part, part, part, 0}};
    }
    case Collective::kGather: return {n > 1, true, {one / d, one / d, (d - 1) / d, 0}};
    case Collective::kScatter: return {n > 1, true, {(d - 1) / d, (d - 1) / d, one / d, 0}};
  }
  return {};
}

TEST_P(EverySchedule, HasTheStepsAndTheTrafficOfTheFormulas) {
  for (int n = 1; n <= test::kProvenRanks; ++n) {
    const ScheduleRequest request = RequestOf(GetParam(), n);
    const Expected expected = ExpectedOf(GetParam(), n);
    const std::vector<Schedule> schedules = MakeAll(request);
    const Result<Proof> proof = Validate(schedules, 1);
    ASSERT_TRUE(proof.ok()) << proof.status().message();
    EXPECT_EQ(proof->steps, expected.steps) << n;
    EXPECT_EQ(proof->rank_order, expected.rank_order) << n;
    Traffic most;
    double sent = 0, received = 0;
    for (const Schedule& schedule : schedules) {
      const Traffic traffic = TrafficOf(schedule);
      most.sent = std::max(most.sent, traffic.sent);
      most.unicast = std::max(most.unicast, traffic.unicast);
      most.received = std::max(most.received, traffic.received);
      most.largest_sum = std::max(most.largest_sum, traffic.largest_sum);
      sent += traffic.unicast;
      received += traffic.received;
    }
    EXPECT_NEAR(most.sent, expected.most.sent, 1e-9) << n;
    EXPECT_NEAR(most.unicast, expected.most.unicast, 1e-9) << n;
    EXPECT_NEAR(most.received, expected.most.received, 1e-9) << n;
    EXPECT_EQ(most.largest_sum, expected.most.largest_sum) << n;
    EXPECT_NEAR(sent, received, 1e-6) << n;
  }
}

// Lanes that a rank is an end of, and those of them it produces, at most.
std::pair<int, int> ExpectedLanes(const Case& which, int n) {
  const bool ring = which.algorithm == Algorithm::kRing;
  const bool direct = which.algorithm == Algorithm::kTwoShot;
  switch (which.collective) {
    case Collective::kAllReduce: {
      const int log = FloorLog2(n);
      if (which.algorithm == Algorithm::kTree) return {7, 3};
      if (which.algorithm == Algorithm::kRecursiveDoubling) return {2 * log, log};
      if (which.algorithm == Algorithm::kOneShot) return {n, 1};
      return ring ? std::pair(4, 2) : std::pair(3 * n - 2, n);
    }
    case Collective::kReduceScatter: return ring ? std::pair(4, 2) : std::pair(2 * n - 2, n - 1);
    case Collective::kAllGather: return ring ? std::pair(4, 2) : std::pair(n, 1);
    case Collective::kBroadcast: return {direct ? 1 : 2, 1};
    case Collective::kReduce: return {ring ? 2 : direct ? n - 1 : 3, 1};
    case Collective::kAllToAll: return {2 * n - 2, n - 1};
    case Collective::kGather: return {n - 1, 1};
    case Collective::kScatter: return {n - 1, n - 1};
  }
  return {};
}

TEST_P(EverySchedule, HasTheLanesOfTheFormulas) {
  for (int n : {8, 16, 64}) {
    std::pair<int, int> most = {0, 0};
    for (const Schedule& schedule : MakeAll(RequestOf(GetParam(), n))) {
      const auto produced =
          std::count_if(schedule.lanes.begin(), schedule.lanes.end(),
                        [&](const ScheduleLane& lane) { return lane.producer == schedule.rank; });
      most.first = std::max(most.first, static_cast<int>(schedule.lanes.size()));
      most.second = std::max(most.second, static_cast<int>(produced));
    }
    EXPECT_EQ(most, ExpectedLanes(GetParam(), n)) << n;
  }
}

// Groups of ranks: everything is right for every size of them, and what passes from group to group
// does so once.
TEST(DirectGroups, AreProvenForEverySize) {
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kTwoShot}, 0);
  for (request.nranks = 2; request.nranks <= (test::kSanitized ? 10 : 20); ++request.nranks) {
    for (request.group = 1; request.group <= request.nranks + 1; ++request.group) {
      SCOPED_TRACE(fmt::format("{} ranks in groups of {}", request.nranks, request.group));
      request.channels = request.nranks < 8 ? 2 : 1;
      request.side_phases = request.nranks % 2 == 0 ? 1 : 0;
      const Proof proof = Prove(request);
      // ((0 + 1) + 2) + 3, with a single rank in the second group.
      EXPECT_EQ(proof.rank_order, request.group == 1 || request.group >= request.nranks - 1);
      if (HasFailure()) return;
    }
  }
}

TEST(DirectGroups, ExchangeSums) {
  for (const auto& [n, m] :
       {std::pair(8, 4), std::pair(16, 4), std::pair(12, 6), std::pair(7, 3)}) {
    SCOPED_TRACE(fmt::format("{} ranks in groups of {}", n, m));
    ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kTwoShot}, n);
    request.group = m;
    const std::vector<Schedule> schedules = MakeAll(request);
    EXPECT_EQ(Prove(request).steps, 4);
    const int groups = (n + m - 1) / m;
    double sent = 0;
    for (const Schedule& schedule : schedules) {
      sent += TrafficOf(schedule).unicast;
      double across = 0, results = 0;
      for (const Strand& strand : schedule.strands) {
        for (const Step& step : strand.steps) {
          for (uint32_t o = 0; o < step.outputs; ++o) {
            const Operand& output = schedule.operands[step.first_operand + step.inputs + o];
            if (output.space != Space::kLane) continue;
            const bool sum = output.format.form == Form::kSum;
            for (const int to : schedule.lanes[output.index].consumers) {
              const bool inside = to / m == schedule.rank / m;
              const int first = schedule.rank / m * m;
              const int whole = inside ? 1 : std::min(m, n - first);
              EXPECT_EQ(output.format.contributions, sum ? whole : 0);
              if (!inside) (sum ? across : results) += 1.0 / n;
            }
          }
        }
      }
      EXPECT_NEAR(results, (groups - 1.0) / n, 1e-9);
      if (n % m == 0) {
        EXPECT_NEAR(across, (groups - 1.0) / n, 1e-9);
      }
    }
    EXPECT_NEAR(sent, 2.0 * (n - 1), 1e-9);  // as without groups
  }
}

TEST(DirectGroups, OfOneGroupAndElsewhereChangeNothing) {
  for (const Case& which : AllCases()) {
    ScheduleRequest request = RequestOf(which, 6);
    const std::vector<Schedule> plain = MakeAll(request);
    const bool direct =
        which.collective == Collective::kAllReduce && which.algorithm == Algorithm::kTwoShot;
    request.group = direct ? 6 : 2;
    const std::vector<Schedule> same = MakeAll(request);
    for (size_t r = 0; r < plain.size(); ++r) EXPECT_EQ(DumpText(same[r]), DumpText(plain[r]));
  }
}

TEST(ReduceRing, IsInRankOrderToTheLastRank) {
  for (int n : {2, 3, 8, 64}) {
    ScheduleRequest request = RequestOf({Collective::kReduce, Algorithm::kRing}, n);
    for (int root : {0, n / 2, n - 1}) {
      request.root = root;
      EXPECT_EQ(Prove(request).rank_order, root == n - 1) << test::Describe(request);
    }
  }
}

TEST(HasSchedule, OfEachAlgorithmThatExists) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const auto collective = static_cast<Collective>(c);
      const auto algorithm = static_cast<Algorithm>(a);
      const bool exists = std::any_of(AllCases().begin(), AllCases().end(), [&](const Case& which) {
        return which.collective == collective && which.algorithm == algorithm;
      });
      EXPECT_EQ(HasSchedule(collective, algorithm, 4), exists);
      EXPECT_FALSE(HasSchedule(collective, algorithm, 0));
    }
  }
}

void ExpectRefused(const ScheduleRequest& request, const std::string& what) {
  const Result<Schedule> schedule = MakeSchedule(request);
  ASSERT_FALSE(schedule.ok());
  EXPECT_EQ(schedule.status().code(), Code::kInvalidArgument);
  EXPECT_NE(schedule.status().message().find(what), std::string::npos)
      << schedule.status().message();
}

TEST(MakeSchedule, RefusesWhatIsNotThere) {
  ExpectRefused(RequestOf({Collective::kBroadcast, Algorithm::kRecursiveDoubling}, 4),
                "broadcast: there is no algorithm recursive_doubling");
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kRing}, 0);
  ExpectRefused(request, "nranks is 0");
  request.nranks = 4;
  request.rank = 4;
  ExpectRefused(request, "rank is 4, not 0..3");
  request.rank = -1;
  ExpectRefused(request, "rank is -1");
  request.rank = 0;
  request.root = 4;
  ExpectRefused(request, "root is 4");
  request.root = 0;
  request.channels = 0;
  ExpectRefused(request, "channels is 0");
  request.channels = kMaxChannels + 1;
  ExpectRefused(request, "channels is 65, not 1..64");
  request.channels = 1;
  request.group = -1;
  ExpectRefused(request, "group is -1");
  request.group = 0;
  request.collective = Collective::kBroadcast;
  request.side_phases = 1;
  ExpectRefused(request, "broadcast: there is no side phase");
  request.collective = Collective::kReduceScatter;
  request.side_one_shot = true;
  ExpectRefused(request, "reduce_scatter: there is no side phase in one shot");
}

TEST(MakeSchedule, NumbersTheSegmentsOfTheMostRanks) {
  ScheduleRequest request = RequestOf({Collective::kAllToAll, Algorithm::kTwoShot}, 4097);
  ExpectRefused(request, "alltoall: nranks is 4097, not 1..4096");
  EXPECT_FALSE(HasSchedule(Collective::kAllToAll, Algorithm::kTwoShot, 4097));
  EXPECT_TRUE(HasSchedule(Collective::kGather, Algorithm::kTwoShot, 4097));
  request.nranks = 4096;
  request.rank = 4095;
  const Result<Schedule> schedule = MakeSchedule(request);
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  EXPECT_EQ(schedule->phases[0].chunks, 4096u * 4096u);
  // Its own segment: the last one of all.
  EXPECT_EQ(schedule->operands.back().chunk, 4096u * 4096u - 1);
}

TEST(MakeSchedule, RefusesMoreLanesThanIndicesReach) {
  ScheduleRequest request = RequestOf({Collective::kReduceScatter, Algorithm::kTwoShot}, 1000);
  request.channels = 33;  // 33 * 2 * 999 lanes
  ExpectRefused(request, "1000 ranks with 33 channels need 65934 lanes");
  request.channels = 32;
  EXPECT_TRUE(MakeSchedule(request).ok());
}

}  // namespace
}  // namespace inccl
