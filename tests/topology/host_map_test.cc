// SPDX-License-Identifier: Apache-2.0
#include "topology/host_map.h"

#include <gtest/gtest.h>

#include <vector>

namespace inccl {
namespace {

std::vector<int> Ranks(const HostMap& map, int host) {
  return {map.RanksOf(host).begin(), map.RanksOf(host).end()};
}

TEST(HostMap, NumbersHostsByTheirLowestRank) {
  const HostMap map(std::vector<uint64_t>{77, 5, 77, 9, 5, 77});
  ASSERT_EQ(map.nranks(), 6);
  ASSERT_EQ(map.hosts(), 3);
  EXPECT_EQ(Ranks(map, 0), (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(Ranks(map, 1), (std::vector<int>{1, 4}));
  EXPECT_EQ(Ranks(map, 2), (std::vector<int>{3}));
  const std::vector<int> hosts = {0, 1, 0, 2, 1, 0}, local = {0, 0, 1, 0, 1, 2};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(map.HostOf(rank), hosts[static_cast<size_t>(rank)]) << rank;
    EXPECT_EQ(map.LocalIndex(rank), local[static_cast<size_t>(rank)]) << rank;
  }
  EXPECT_TRUE(map.SameHost(0, 5));
  EXPECT_FALSE(map.SameHost(0, 1));
}

TEST(HostMap, KnowsItsSmallestAndLargestHost) {
  const HostMap map(std::vector<uint64_t>{77, 5, 77, 9, 5, 77});
  EXPECT_EQ(map.SmallestHost(), 1);
  EXPECT_EQ(map.LargestHost(), 3);
  EXPECT_EQ(HostMap::OneHost(4).SmallestHost(), 4);
  EXPECT_EQ(HostMap::OneHost(4).LargestHost(), 4);
}

TEST(HostMap, DependsOnWhoIsTogetherOnly) {
  EXPECT_EQ(HostMap(std::vector<uint64_t>{1, 2, 1}), HostMap(std::vector<uint64_t>{9, 0, 9}));
  EXPECT_FALSE(HostMap(std::vector<uint64_t>{1, 2, 1}) == HostMap(std::vector<uint64_t>{1, 1, 2}));
}

TEST(HostMap, OneHostHoldsAllRanks) {
  const HostMap map = HostMap::OneHost(3);
  EXPECT_EQ(map.hosts(), 1);
  EXPECT_EQ(Ranks(map, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(HostMap().hosts(), 0);
  EXPECT_EQ(HostMap::OneHost(0), HostMap());
}

TEST(HostMap, VisitsHostsSiteBySite) {
  HostMap map(std::vector<uint64_t>{1, 2, 3, 4, 5});
  EXPECT_EQ(map.sites(), 1);
  EXPECT_EQ(map.HostAt(3), 3);
  map.SetSites({0, 2, 1, 0, 2});
  EXPECT_EQ(map.sites(), 3);
  EXPECT_EQ(map.SiteOf(4), 2);
  std::vector<int> visited;
  for (int place = 0; place < 5; ++place) {
    visited.push_back(map.HostAt(place));
    EXPECT_EQ(map.PlaceOf(map.HostAt(place)), place);
  }
  EXPECT_EQ(visited, (std::vector<int>{0, 3, 2, 1, 4}));
}

TEST(HostMap, GroupsAreHostsOrElseSites) {
  HostMap alone(std::vector<uint64_t>{1, 2, 3, 4});
  EXPECT_FALSE(alone.HasGroups());
  alone.SetSites({0, 1, 0, 1});
  EXPECT_TRUE(alone.HasGroups());
  EXPECT_EQ(Ranks(alone.Groups(), 1), (std::vector<int>{1, 3}));
  alone.SetSites({0, 1, 2, 3});  // nobody shares a site
  EXPECT_FALSE(alone.HasGroups());
  HostMap pairs(std::vector<uint64_t>{1, 1, 2, 2, 3, 3});
  pairs.SetSites({0, 1, 0});
  EXPECT_EQ(pairs.Groups().hosts(), 3);
  EXPECT_FALSE(HostMap::OneHost(4).HasGroups());
}

}  // namespace
}  // namespace inccl
