// SPDX-License-Identifier: Apache-2.0
//
// Schedules of ranks on several hosts: proven right whatever ranks share a host, and what crosses
// from host to host is what the formulas say.
#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "collectives/schedule_builder.h"
#include "collectives/schedule_cases.h"
#include "communicator/collective_runner.h"
#include "topology/host_map.h"
#include "transport/loopback/loopback.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::Case;
using test::CaseName;
using test::HostsCases;
using test::RequestOf;

HostMap Map(const std::vector<uint64_t>& identities) { return HostMap(identities); }

// Interleaved hosts, hosts of unequal size, one rank per host, and one host.
std::vector<HostMap> MapsOf(int n) {
  std::vector<std::vector<uint64_t>> maps(6);
  for (uint64_t r = 0; r < static_cast<uint64_t>(n); ++r) {
    maps[0].push_back(r % 2);
    maps[1].push_back(r % 3);
    maps[2].push_back(r * r % 5);              // uneven and interleaved
    maps[3].push_back(r == 1 ? 1 : 2);         // one rank alone, not the first
    maps[4].push_back(r);                      // a host each
    maps[5].push_back(r < 3 ? 0 : 1 + r / 5);  // neighbours
  }
  std::vector<HostMap> result;
  for (const std::vector<uint64_t>& identities : maps) result.push_back(Map(identities));
  return result;
}

// Those of them with several hosts, on up to three sites.
std::vector<HostMap> MapsWithSites(int n) {
  std::vector<HostMap> result;
  for (const HostMap& map : MapsOf(n)) {
    if (map.hosts() < 2) continue;
    std::vector<int> in_turn, uneven;
    for (int host = 0; host < map.hosts(); ++host) {
      in_turn.push_back(host % 3);
      uneven.push_back(host < 3 ? host : 2 - (host % 5 == 0));
    }
    for (const std::vector<int>& sites : {in_turn, uneven}) {
      result.push_back(map);
      result.back().SetSites(sites);
    }
  }
  return result;
}

std::string Text(const HostMap& hosts) {
  std::string text = " hosts";
  for (int rank = 0; rank < hosts.nranks(); ++rank) text += fmt::format(" {}", hosts.HostOf(rank));
  return text;
}

Proof Prove(ScheduleRequest request, const HostMap& hosts, int windows = 3) {
  request.hosts = &hosts;
  const Result<Proof> proof = Validate(test::MakeAll(request), windows, &hosts);
  EXPECT_TRUE(proof.ok()) << test::Describe(request) << Text(hosts) << ": "
                          << proof.status().message();
  return proof.ok() ? *proof : Proof{};
}

// Hierarchical schedules need a host of several ranks, and another host. Without a root a site of
// several hosts will do.
bool Exists(const ScheduleRequest& request, const HostMap& hosts) {
  const bool sites = hosts.sites() > 1 && hosts.sites() < hosts.hosts();
  const bool two_levels = hosts.hosts() > 1 && (hosts.hosts() < hosts.nranks() ||
                                                (sites && !HasRoot(request.collective)));
  const bool exists = request.algorithm != Algorithm::kHierarchical || two_levels;
  EXPECT_EQ(HasSchedule(request.collective, request.algorithm, request.nranks, &hosts), exists);
  return exists;
}

class OnHosts : public testing::TestWithParam<Case> {};

TEST_P(OnHosts, EveryScheduleIsProven) {
  for (int n = 1; n <= (test::kSanitized ? 8 : 20) && !HasFailure(); ++n) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    std::vector<HostMap> maps = MapsOf(n);
    for (HostMap& map : MapsWithSites(n)) maps.push_back(std::move(map));
    for (const HostMap& hosts : maps) {
      if (!Exists(request, hosts)) continue;
      for (request.root = 0; request.root < (HasRoot(request.collective) ? n : 1); ++request.root) {
        request.channels = 1 + n % 2;
        Prove(request, hosts);
      }
      request.root = 0;
      for (size_t phases = 1; phases <= 2 && test::HasSides(request.collective); ++phases) {
        request.side_phases = phases;
        Prove(request, hosts);
      }
      request.side_phases = 0;
    }
  }
  if (test::kSanitized) return;
  for (const HostMap& hosts : MapsOf(64)) {
    const ScheduleRequest request = RequestOf(GetParam(), 64);
    if (Exists(request, hosts)) Prove(request, hosts);
  }
}

TEST_P(OnHosts, OneHostChangesNothing) {
  if (GetParam().algorithm == Algorithm::kHierarchical) return;
  for (const int n : {1, 2, 5, 8}) {
    ScheduleRequest request = RequestOf(GetParam(), n);
    const HostMap one = HostMap::OneHost(n);
    for (request.root = 0; request.root < (HasRoot(request.collective) ? n : 1); ++request.root) {
      request.hosts = nullptr;
      const std::vector<Schedule> plain = test::MakeAll(request);
      request.hosts = &one;
      const std::vector<Schedule> same = test::MakeAll(request);
      for (size_t r = 0; r < plain.size(); ++r) EXPECT_EQ(DumpText(same[r]), DumpText(plain[r]));
    }
    const Proof proof = Prove(RequestOf(GetParam(), n), one);
    EXPECT_EQ(proof.crossing_messages, 0);
    EXPECT_EQ(proof.crossing_steps, 0);
    EXPECT_EQ(proof.crossing_shares, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, OnHosts, testing::ValuesIn(HostsCases()), CaseName);

struct Crossing {
  int messages = 0;
  double shares = 0;
  int steps = 0;
};

int SizeOf(const HostMap& hosts, int host) { return static_cast<int>(hosts.RanksOf(host).size()); }

int LargestHost(const HostMap& hosts) {
  int most = 0;
  for (int h = 0; h < hosts.hosts(); ++h) most = std::max(most, SizeOf(hosts, h));
  return most;
}

// Ordered pairs of ranks on different hosts.
int PairsAcross(const HostMap& hosts) {
  int pairs = hosts.nranks() * hosts.nranks();
  for (int h = 0; h < hosts.hosts(); ++h) {
    const int size = static_cast<int>(hosts.RanksOf(h).size());
    pairs -= size * size;
  }
  return pairs;
}

std::vector<int> SortedByHost(const HostMap& hosts) {
  std::vector<int> order(static_cast<size_t>(hosts.nranks()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return hosts.HostOf(a) < hosts.HostOf(b); });
  return order;
}

// Both binary trees over the ranks sorted by host: two messages pass every edge.
Crossing TreeCrossing(const HostMap& hosts) {
  const std::vector<int> order = SortedByHost(hosts);
  const auto crosses = [&](int a, int b) {
    return !hosts.SameHost(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  };
  Crossing crossing;
  for (int tree = 0; tree < 2; ++tree) {
    for (int place = 0; place < hosts.nranks(); ++place) {
      int above = 0;  // crossings on the way to the root
      for (int at = place;;) {
        const int parent = DoubleTreeNode(hosts.nranks(), tree, at).parent;
        if (parent < 0) break;
        const int crossing_edge = crosses(at, parent) ? 1 : 0;
        if (at == place) crossing.messages += 2 * crossing_edge;
        above += crossing_edge;
        at = parent;
      }
      crossing.steps = std::max(crossing.steps, 2 * above);
    }
  }
  crossing.shares = crossing.messages / 2.0;
  return crossing;
}

// A power of two of ranks, sorted by host, each with the partners at distance 1, 2, 4, ...
Crossing DoublingCrossing(const HostMap& hosts) {
  Crossing crossing;
  const int n = hosts.nranks();
  const std::vector<int> order = SortedByHost(hosts);
  std::vector<int> chain(static_cast<size_t>(n));
  for (int distance = 1; distance < n; distance *= 2) {
    std::vector<int> next = chain;
    for (int place = 0; place < n; ++place) {
      const auto mine = static_cast<size_t>(place), theirs = static_cast<size_t>(place ^ distance);
      const int step = hosts.SameHost(order[mine], order[theirs]) ? 0 : 1;
      crossing.messages += step;
      next[mine] = std::max(chain[mine], chain[theirs] + step);
    }
    chain = next;
  }
  crossing.shares = crossing.messages;
  crossing.steps = *std::max_element(chain.begin(), chain.end());
  return crossing;
}

// With several hosts, H of them; a ring has H edges between hosts.
Crossing ExpectedOf(const Case& which, const HostMap& hosts) {
  const int n = hosts.nranks(), h = hosts.hosts(), pairs = PairsAcross(hosts);
  const int largest = LargestHost(hosts);
  const bool ring = which.algorithm == Algorithm::kRing;
  const bool hierarchical = which.algorithm == Algorithm::kHierarchical;
  switch (which.collective) {
    case Collective::kAllReduce:
      switch (which.algorithm) {
        // The longest chain goes round twice, but for two edges in a row.
        case Algorithm::kRing:
          return {h * 2 * (n - 1), h * 2.0 * (n - 1) / n,
                  2 * h - (largest >= 3   ? 0
                           : largest == 2 ? 1
                                          : 2)};
        case Algorithm::kTwoShot: return {2 * pairs, 2.0 * pairs / n, 2};
        case Algorithm::kOneShot: return {pairs, double(pairs), 1};
        case Algorithm::kTree: return TreeCrossing(hosts);
        case Algorithm::kRecursiveDoubling: return DoublingCrossing(hosts);
        // Every host owns as many chunks as the largest has ranks.
        case Algorithm::kHierarchical: return {2 * h * largest * (h - 1), 2.0 * (h - 1), 2};
        case Algorithm::kEnd: break;
      }
      break;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      if (hierarchical) return {n * (h - 1), h - 1.0, 1};
      if (!ring) return {pairs, 1.0 * pairs / n, 1};
      // But for one edge.
      return {h * (n - 1), h * (n - 1.0) / n, h - (largest >= 2 ? 0 : 1)};
    case Collective::kBroadcast:
    case Collective::kReduce: {
      if (hierarchical) return {largest * (h - 1), h - 1.0, h - 1};
      const int apart = n - SizeOf(hosts, 0);  // root 0
      if (which.algorithm == Algorithm::kTwoShot) return {apart, double(apart), 1};
      const int depth = ring ? h - 1 : static_cast<int>(std::bit_width(unsigned(h))) - 1;
      return {h - 1, double(h - 1), depth};
    }
    case Collective::kAllToAll: return {pairs, 1.0 * pairs / n / n, 1};
    case Collective::kGather:
    case Collective::kScatter: {
      const int apart = n - SizeOf(hosts, 0);
      return {apart, 1.0 * apart / n, 1};
    }
  }
  return {};
}

TEST_P(OnHosts, WhatCrossesIsWhatTheFormulasSay) {
  for (int n = 2; n <= 16; ++n) {
    if (GetParam().algorithm == Algorithm::kRecursiveDoubling &&
        !std::has_single_bit(static_cast<unsigned>(n))) {
      continue;
    }
    for (const HostMap& hosts : MapsOf(n)) {
      if (hosts.hosts() == 1 || !Exists(RequestOf(GetParam(), n), hosts)) continue;
      const Crossing expected = ExpectedOf(GetParam(), hosts);
      const Proof proof = Prove(RequestOf(GetParam(), n), hosts, 2);
      SCOPED_TRACE(fmt::format("{} ranks{}", n, Text(hosts)));
      EXPECT_EQ(proof.crossing_messages, expected.messages);
      EXPECT_NEAR(proof.crossing_shares, expected.shares, 1e-9);
      EXPECT_EQ(proof.crossing_steps, expected.steps);
    }
  }
}

// The ring a, b, a, b crosses twice, whatever the numbers of the ranks; in the order of ranks it
// would cross at every edge.
TEST(RingOnHosts, CrossesEachBoundaryOnce) {
  const HostMap hosts = Map({7, 9, 7, 9});
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kRing}, 4);
  EXPECT_EQ(Prove(request, hosts).crossing_messages, 2 * 6);
  const Result<Proof> by_rank = Validate(test::MakeAll(request), 3, &hosts);
  EXPECT_EQ(by_rank->crossing_messages, 4 * 6);
  // Chunk c is complete at rank c, as on one host.
  request.hosts = &hosts;
  for (const Schedule& schedule : test::MakeAll(request)) {
    for (const Step& step : schedule.strands[0].steps) {
      const Operand* const first = &schedule.operands[step.first_operand];
      const bool folds = step.inputs == 2;
      const bool completes = folds && first[step.inputs + step.outputs - 1].space == Space::kOutput;
      if (completes) {
        EXPECT_EQ(first->chunk, schedule.rank);
      }
    }
  }
}

TEST(SchedulesOnHosts, RefuseHostsOfOtherRanks) {
  const HostMap hosts = Map({1, 2, 1});
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kRing}, 4);
  const std::vector<Schedule> schedules = test::MakeAll(request);
  request.hosts = &hosts;
  EXPECT_EQ(MakeSchedule(request).status().message(),
            "allreduce: the hosts are those of 3 ranks, not of 4");
  EXPECT_EQ(Validate(schedules, 3, &hosts).status().message(),
            "Validate: the hosts are those of 3 ranks, not of 4");
}

TEST(SchedulesOnHosts, LanesBetweenHostsHaveTheirOwnDepth) {
  const HostMap hosts = Map({1, 2, 1, 2});
  const std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(4);
  const SlotOptions slots{
      .data_depth = 4, .side_depth = 2, .network_data_depth = 30, .network_side_depth = 9};
  const LaneTable on_hosts(ends[2].get(), &hosts), on_one(ends[2].get());
  struct Lane {
    LaneClass lane_class;
    int producer, consumer;
    uint16_t depth, on_one_host;
  };
  for (const Lane& c :
       {Lane{LaneClass::kData, 2, 0, 4, 4}, Lane{LaneClass::kData, 2, 1, 30, 4},
        Lane{LaneClass::kData, 3, 2, 30, 4}, Lane{LaneClass::kSide, 0, 2, 2, 2},
        Lane{LaneClass::kSide, 2, 3, 9, 2}, Lane{LaneClass::kSendRecv, 1, 2, 30, 4}}) {
    const LaneSpec spec{
        .lane_class = c.lane_class, .producer = c.producer, .consumers = {c.consumer}};
    EXPECT_EQ(on_hosts.DepthOf(spec, slots), c.depth) << c.producer << " " << c.consumer;
    EXPECT_EQ(on_one.DepthOf(spec, slots), c.on_one_host) << c.producer << " " << c.consumer;
  }
}

TEST(SchedulesOnHosts, APlanIsMadeForTheHostsOfTheCommunicator) {
  const HostMap hosts = Map({1, 2, 1, 2});
  const std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(4);
  Call call;
  call.nranks = 4;
  call.rank = 2;
  call.count = 1 << 20;
  ScheduleRequest request = RequestOf({Collective::kAllReduce, Algorithm::kRing}, 4);
  request.rank = 2;
  for (const HostMap* const map : {&hosts, static_cast<const HostMap*>(nullptr)}) {
    LaneTable lanes(ends[2].get());
    CommOptions options;
    options.algorithms = *AlgorithmFilter::Parse("ring");
    Plans plans({.hosts = map, .filtered = true}, &options, &lanes);
    const Result<Plan*> plan = plans.For(call, false);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Status bound = plans.Bind(call, *plan);
    ASSERT_TRUE(bound.ok()) << bound.message();
    request.hosts = map;
    EXPECT_EQ(DumpText((*plan)->program->schedule), DumpText(*MakeSchedule(request)));
  }
}

}  // namespace
}  // namespace inccl
