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

}  // namespace
}  // namespace inccl
