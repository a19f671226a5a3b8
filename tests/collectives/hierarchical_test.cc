// SPDX-License-Identifier: Apache-2.0
//
// Hierarchical schedules: proven for every shape of up to 12 ranks, whatever the numbers of the
// ranks. What each host sends and receives, the width of the sums between hosts and the messages in
// a row are those of the formulas in docs/algorithms.md.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "collectives/schedule_cases.h"
#include "support/seed.h"
#include "topology/host_map.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::MakeAll;
using test::RequestOf;

// Every multiset of host sizes with this sum, ascending, that has two levels.
std::vector<std::vector<int>> ShapesOf(int ranks, int least = 1) {
  std::vector<std::vector<int>> shapes;
  for (int first = least; first <= ranks; ++first) {
    if (first == ranks) shapes.push_back({first});
    for (std::vector<int>& rest : ShapesOf(ranks - first, first)) {
      rest.insert(rest.begin(), first);
      shapes.push_back(std::move(rest));
    }
  }
  return shapes;
}

bool HasTwoLevels(const std::vector<int>& sizes) { return sizes.size() > 1 && sizes.back() > 1; }

// Hosts of these sizes: ranks host by host with the largest host first or last, dealt in turn, and
// at random.
std::vector<HostMap> NumberingsOf(const std::vector<int>& sizes, std::mt19937_64* random) {
  std::vector<uint64_t> ascending, in_turn;
  for (size_t h = 0; h < sizes.size(); ++h) ascending.insert(ascending.end(), sizes[h], h);
  for (int round = 0; round < sizes.back(); ++round) {
    for (size_t h = 0; h < sizes.size(); ++h) {
      if (round < sizes[h]) in_turn.push_back(h);
    }
  }
  std::vector<uint64_t> descending(ascending.rbegin(), ascending.rend()), any = ascending;
  std::shuffle(any.begin(), any.end(), *random);
  return {HostMap(ascending), HostMap(descending), HostMap(in_turn), HostMap(any)};
}

// What a host sends to other hosts and receives from them, in windows.
struct Load {
  double sent = 0, received = 0;
};

std::vector<Load> LoadsOf(const std::vector<Schedule>& schedules, const HostMap& hosts) {
  std::vector<Load> loads(static_cast<size_t>(hosts.hosts()));
  for (const Schedule& schedule : schedules) {
    const int host = hosts.HostOf(schedule.rank);
    for (const Strand& strand : schedule.strands) {
      const Phase& phase = schedule.phases[strand.phase];
      for (const Step& step : strand.steps) {
        for (uint32_t i = 0; i < step.outputs; ++i) {
          const Operand& output = schedule.operands[step.first_operand + step.inputs + i];
          if (output.space != Space::kLane) continue;
          for (const int consumer : schedule.lanes[output.index].consumers) {
            if (hosts.HostOf(consumer) == host) continue;
            const double share = 1.0 / (phase.chunks * phase.channels);
            loads[static_cast<size_t>(host)].sent += share;
            loads[static_cast<size_t>(hosts.HostOf(consumer))].received += share;
          }
        }
      }
    }
  }
  return loads;
}

Load ExpectedLoad(const ScheduleRequest& request, const HostMap& hosts, int host) {
  const double n = hosts.nranks(), h = hosts.hosts();
  const auto size = static_cast<double>(hosts.RanksOf(host).size());
  const int place = (host - hosts.HostOf(request.root) + hosts.hosts()) % hosts.hosts();
  const double not_first = place == 0 ? 0 : 1, not_last = place == hosts.hosts() - 1 ? 0 : 1;
  switch (request.collective) {
    case Collective::kAllReduce: return {2 * (h - 1) / h, 2 * (h - 1) / h};
    case Collective::kReduceScatter: return {(n - size) / n, size * (h - 1) / n};
    case Collective::kAllGather: return {size * (h - 1) / n, (n - size) / n};
    case Collective::kBroadcast: return {not_last, not_first};
    // The chain ends at the root: its host receives, and the one after it only sends.
    default: return {not_first, place == 1 % hosts.hosts() ? 0.0 : 1.0};
  }
}

int ExpectedSteps(const ScheduleRequest& request, const HostMap& hosts) {
  const int root_host = hosts.HostOf(request.root), n = hosts.hosts();
  const auto several = [&](int host) { return hosts.RanksOf(host % n).size() > 1 ? 1 : 0; };
  switch (request.collective) {
    case Collective::kAllReduce: return 4;
    case Collective::kReduceScatter:
    case Collective::kAllGather: return 2;
    case Collective::kBroadcast: return several(root_host) + n - 1 + several(root_host + n - 1);
    default: return several(root_host + 1) + n - 1 + several(root_host);
  }
}

void Check(const ScheduleRequest& request, const HostMap& hosts) {
  const std::vector<Schedule> schedules = MakeAll(request);
  const Result<Proof> proof = Validate(schedules, 3, &hosts);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->steps, ExpectedSteps(request, hosts));
  const std::vector<Load> loads = LoadsOf(schedules, hosts);
  for (int host = 0; host < hosts.hosts(); ++host) {
    const Load expected = ExpectedLoad(request, hosts, host);
    EXPECT_NEAR(loads[static_cast<size_t>(host)].sent, expected.sent, 1e-9) << "host " << host;
    EXPECT_NEAR(loads[static_cast<size_t>(host)].received, expected.received, 1e-9)
        << "host " << host;
  }
}

class Hierarchical : public testing::TestWithParam<Collective> {};

TEST_P(Hierarchical, IsProvenForEveryShape) {
  std::mt19937_64 random(test::TestSeed());
  for (int n = 3; n <= (test::kSanitized ? 7 : 12); ++n) {
    for (const std::vector<int>& sizes : ShapesOf(n)) {
      if (!HasTwoLevels(sizes)) continue;
      for (const HostMap& hosts : NumberingsOf(sizes, &random)) {
        ScheduleRequest request = RequestOf({GetParam(), Algorithm::kHierarchical}, n);
        request.hosts = &hosts;
        request.channels = 1 + n % 2;
        for (request.root = 0; request.root < (HasRoot(GetParam()) ? n : 1); ++request.root) {
          SCOPED_TRACE(fmt::format("{} sizes {}", test::Describe(request), fmt::join(sizes, " ")));
          Check(request, hosts);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// 8 hosts of 8 ranks, and 60 ranks beside 4 hosts of one.
TEST_P(Hierarchical, IsProvenFor64Ranks) {
  if (test::kSanitized) GTEST_SKIP() << "the same code with fewer ranks above";
  std::mt19937_64 random(test::TestSeed());
  for (const std::vector<int>& sizes :
       {std::vector<int>(8, 8), std::vector<int>{1, 1, 1, 1, 60}, std::vector<int>{31, 33}}) {
    for (const HostMap& hosts : NumberingsOf(sizes, &random)) {
      ScheduleRequest request = RequestOf({GetParam(), Algorithm::kHierarchical}, 64);
      request.hosts = &hosts;
      SCOPED_TRACE(fmt::format("sizes {}", fmt::join(sizes, " ")));
      Check(request, hosts);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, Hierarchical,
                         testing::Values(Collective::kAllReduce, Collective::kReduceScatter,
                                         Collective::kAllGather, Collective::kBroadcast,
                                         Collective::kReduce),
                         [](const testing::TestParamInfo<Collective>& param) {
                           return std::string(Name(param.param));
                         });

// The sum that a host sends has the contributions of all its ranks, and in a reduce those of the
// hosts before it, too.
TEST(HierarchicalSums, HaveTheContributionsOfWholeHosts) {
  const std::vector<uint64_t> identities = {5, 6, 5, 7, 6, 5, 7, 5};  // 4, 2 and 2 ranks
  const HostMap hosts(identities);
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
    ScheduleRequest request = RequestOf({collective, Algorithm::kHierarchical}, 8);
    request.hosts = &hosts;
    int seen = 0;
    for (const Schedule& schedule : MakeAll(request)) {
      const int host = hosts.HostOf(schedule.rank);
      // The chain to root 0: hosts 1, 2, 0.
      const int before = collective == Collective::kReduce && host == 2 ? 2 : 0;
      for (const Operand& operand : schedule.operands) {
        if (operand.space != Space::kLane || operand.format.form != Form::kSum) continue;
        const ScheduleLane& lane = schedule.lanes[operand.index];
        if (lane.producer != schedule.rank) continue;
        const bool crosses = hosts.HostOf(lane.consumers.front()) != host;
        const auto whole = static_cast<int>(hosts.RanksOf(host).size()) + before;
        const bool to_root =
            collective == Collective::kReduce && host == 0 && lane.channel % kLanePlanes == 0;
        EXPECT_EQ(operand.format.contributions, crosses   ? whole
                                                : to_root ? 8
                                                          : 1)
            << Name(collective) << " rank " << schedule.rank;
        seen += crosses ? 1 : 0;
      }
    }
    EXPECT_GT(seen, 0);
  }
}

// Sums that each rank sends to other hosts.
std::vector<int> SumsAcross(const std::vector<Schedule>& schedules, const HostMap& hosts) {
  std::vector<int> sums;
  for (const Schedule& schedule : schedules) {
    sums.push_back(0);
    for (const Operand& operand : schedule.operands) {
      if (operand.space != Space::kLane || operand.format.form != Form::kSum) continue;
      const ScheduleLane& lane = schedule.lanes[operand.index];
      const bool sends = lane.producer == schedule.rank;
      sums.back() += sends && !hosts.SameHost(schedule.rank, lane.consumers.front()) ? 1 : 0;
    }
  }
  return sums;
}

// The ranks of a host share what it sends as evenly as whole chunks admit.
TEST(HierarchicalRails, ShareTheWorkOfAHost) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::vector<int>& sizes :
       {std::vector<int>{4, 4, 4}, {1, 1, 1, 1, 4}, {2, 3, 5}, {1, 6}, {3, 3, 4}}) {
    const int n = std::accumulate(sizes.begin(), sizes.end(), 0);
    for (const HostMap& hosts : NumberingsOf(sizes, &random)) {
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
        ScheduleRequest request = RequestOf({collective, Algorithm::kHierarchical}, n);
        request.hosts = &hosts;
        const std::vector<int> sums = SumsAcross(MakeAll(request), hosts);
        for (int rank = 0; rank < n; ++rank) {
          const int size = static_cast<int>(hosts.RanksOf(hosts.HostOf(rank)).size());
          const int largest = sizes.back();
          // Chunks in a row that the ranks of a host take in turn, and how often.
          const bool all = collective == Collective::kAllReduce;
          const int row = collective == Collective::kReduceScatter ? n - size : largest;
          int rows = all ? hosts.hosts() - 1 : 1;
          if (collective == Collective::kReduce && hosts.HostOf(rank) == hosts.HostOf(0)) rows = 0;
          EXPECT_GE(sums[static_cast<size_t>(rank)], rows * (row / size))
              << Name(collective) << " rank " << rank << " sizes "
              << fmt::format("{}", fmt::join(sizes, " "));
          EXPECT_LE(sums[static_cast<size_t>(rank)], rows * ((row + size - 1) / size))
              << Name(collective) << " rank " << rank << " sizes "
              << fmt::format("{}", fmt::join(sizes, " "));
        }
      }
    }
  }
}

// Side information crosses hosts as rarely as data: once per host and direction.
TEST(HierarchicalSides, CrossAsTheDataDoes) {
  const std::vector<uint64_t> identities = {1, 1, 1, 2, 2, 2, 3, 3, 3};
  const HostMap hosts(identities);
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
    ScheduleRequest request = RequestOf({collective, Algorithm::kHierarchical}, 9);
    request.hosts = &hosts;
    request.side_phases = 1;
    const std::vector<Schedule> schedules = MakeAll(request);
    ASSERT_TRUE(Validate(schedules, 3, &hosts).ok());
    double crossing = 0;  // in windows
    for (const Load& load : LoadsOf(schedules, hosts)) crossing += load.sent;
    EXPECT_NEAR(crossing, 2 * 2 + (collective == Collective::kAllReduce ? 2 * 2 : 2), 1e-9);
  }
}

TEST(HierarchicalRefusals, NameWhatIsMissing) {
  const std::vector<uint64_t> apart = {1, 2, 3};
  const HostMap one_host = HostMap::OneHost(3), alone(apart);
  for (const HostMap* const hosts : {&one_host, &alone, static_cast<const HostMap*>(nullptr)}) {
    ScheduleRequest request = RequestOf({Collective::kBroadcast, Algorithm::kHierarchical}, 3);
    request.hosts = hosts;
    EXPECT_FALSE(HasSchedule(request.collective, request.algorithm, 3, hosts));
    const Status status = MakeSchedule(request).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "broadcast: hierarchical needs several hosts, of which one has several ranks");
  }
  EXPECT_TRUE(HasSchedules(Collective::kBroadcast, Algorithm::kHierarchical));
  EXPECT_FALSE(HasSchedules(Collective::kAllToAll, Algorithm::kHierarchical));
}

}  // namespace
}  // namespace inccl
