// SPDX-License-Identifier: Apache-2.0
//
// Schedules of a thousand ranks, and of 512 on 16 hosts, are proven.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "collectives/schedule.h"
#include "verify/validate.h"
#include "world/limits.h"

namespace inccl {
namespace {

std::vector<Schedule> Schedules(Collective collective, Algorithm algorithm, const HostMap& hosts,
                                size_t side_phases = 0) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < hosts.nranks(); ++rank) {
    Result<Schedule> schedule =
        MakeSchedule({{.collective = collective, .nranks = hosts.nranks(), .rank = rank},
                      algorithm,
                      1,
                      side_phases,
                      false,
                      0,
                      &hosts});
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    schedules.push_back(*std::move(schedule));
  }
  return schedules;
}

HostMap HostsOf(int hosts, int ranks) {
  std::vector<uint64_t> identities;
  for (int rank = 0; rank < hosts * ranks; ++rank) {
    identities.push_back(static_cast<uint64_t>(rank / ranks));
  }
  return HostMap(identities);
}

Proof Prove(Collective collective, Algorithm algorithm, const HostMap& hosts,
            size_t side_phases = 0) {
  const Result<Proof> proof =
      Validate(Schedules(collective, algorithm, hosts, side_phases), 1, &hosts);
  EXPECT_TRUE(proof.ok()) << proof.status().message();
  return proof.ok() ? *proof : Proof{};
}

constexpr int kMany = test::kSanitized ? 128 : 1024;
constexpr int kHosts = test::kSanitized ? 4 : 16;

// Up one of two trees of ten levels and down again.
TEST(ManyRanksSchedulesTest, Tree) {
  const HostMap one = HostMap::OneHost(kMany);
  const Proof proof = Prove(Collective::kAllReduce, Algorithm::kTree, one);
  EXPECT_LE(proof.steps, 2 * 11);
  EXPECT_FALSE(proof.rank_order);
  Prove(Collective::kAllReduce, Algorithm::kRecursiveDoubling, one);
  Prove(Collective::kBroadcast, Algorithm::kTree, one);
  Prove(Collective::kReduce, Algorithm::kTree, one);
}

// Two-shot among hosts: every host but the owner's sends a chunk once and receives it once.
TEST(ManyRanksSchedulesTest, Hierarchical) {
  const HostMap hosts = HostsOf(kHosts, 32);
  const Proof proof = Prove(Collective::kAllReduce, Algorithm::kHierarchical, hosts);
  EXPECT_EQ(proof.crossing_messages, 2 * (kHosts - 1) * kHosts * 32);
  EXPECT_DOUBLE_EQ(proof.crossing_shares, 2 * (kHosts - 1));
}

// No lane leads to several other hosts, so a rank's schedule grows with the hosts and not with
// their square.
TEST(ManyRanksSchedulesTest, HierarchicalIsSmall) {
  constexpr int kRanks = 8, kManyHosts = 512;
  const HostMap hosts = HostsOf(kManyHosts, kRanks);
  const Result<Schedule> schedule = MakeSchedule(
      {{.nranks = hosts.nranks(), .rank = 77}, Algorithm::kHierarchical, 1, 0, false, 0, &hosts});
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  size_t consumers = 0;
  for (const ScheduleLane& lane : schedule->lanes) consumers += lane.consumers.size();
  // Between hosts: sums and results, to and from each. Inside: to and from each rank, the chunk's
  // results to all.
  const int other_hosts = kManyHosts - 1, others = kRanks - 1;
  EXPECT_EQ(consumers, static_cast<size_t>(4 * other_hosts + 4 * others + 2 * kRanks * others));
}

// Beyond 64 ranks the agreement of a compressed call takes the tree, too.
TEST(ManyRanksSchedulesTest, TheAgreementIsATree) {
  const HostMap one = HostMap::OneHost(200);
  for (const Schedule& schedule : Schedules(Collective::kAllReduce, Algorithm::kRing, one, 1)) {
    ASSERT_LE(schedule.lanes.size(), 20u);
  }
  Prove(Collective::kAllReduce, Algorithm::kRing, one, 1);
  Prove(Collective::kAllReduce, Algorithm::kTree, one, 1);
}

}  // namespace
}  // namespace inccl
