// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/seed.h"
#include "topology/host_map.h"

namespace inccl {
namespace {

HostMap OneEach(int hosts) {
  std::vector<uint64_t> identities(static_cast<size_t>(hosts));
  std::iota(identities.begin(), identities.end(), uint64_t{0});
  return HostMap(identities);
}

TEST(Sites, HostsWithShortRoundTripsShareASite) {
  const std::vector<MeasuredLink> links = {{0, 1, 20'000}, {0, 2, 100}, {0, 3, 20'400},
                                           {1, 2, 20'100}, {1, 3, 90},  {2, 3, 20'300}};
  const Sites sites = FindSites(OneEach(4), links);
  EXPECT_EQ(sites.count, 2);
  EXPECT_EQ(sites.of_host, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(sites.round_trip_us, (std::vector<uint32_t>{100, 20'400, 20'400, 90}));
  EXPECT_EQ(sites.LongestUs(), 20'400u);
}

TEST(Sites, TheLeastRoundTripOfTwoHostsCounts) {
  const HostMap hosts(std::vector<uint64_t>{7, 7, 8});
  // One connection was slow when it began.
  const std::vector<MeasuredLink> links = {
      {0, 2, 5'000}, {2, 0, 1'200}, {2, 1, 300}, {0, 1, 9'000}};
  const Sites sites = FindSites(hosts, links);
  EXPECT_EQ(sites.count, 1);
  EXPECT_EQ(sites.LongestUs(), 300u);
}

TEST(Sites, WithoutMeasurementsThereIsOne) {
  EXPECT_EQ(FindSites(OneEach(3), {}), Sites());
  EXPECT_EQ(FindSites(HostMap::OneHost(3), std::vector<MeasuredLink>{{0, 1, 50'000}}), Sites());
  EXPECT_EQ(FindSites(OneEach(2), std::vector<MeasuredLink>{{0, 1, 0}}), Sites());
  EXPECT_EQ(FindSites(OneEach(3), std::vector<MeasuredLink>{{0, 1, 200}}).count, 1);
}

TEST(Sites, WhatWasNotMeasuredIsAsFarAsTheFarthest) {
  const std::vector<MeasuredLink> links = {{0, 1, 20'000}, {1, 2, 150'000}};
  const Sites sites = FindSites(OneEach(3), links);
  ASSERT_EQ(sites.count, 3);
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      const bool near = std::minmax({sites.of_host[0], sites.of_host[1]}) == std::minmax({a, b});
      EXPECT_EQ(sites.RoundTripUs(a, b), a == b ? 0u : near ? 20'000u : 150'000u) << a << b;
    }
  }
}

// Sites on a line: to and fro is the shortest way round.
TEST(Sites, HaveNumbersInTheOrderOfAShortRing) {
  std::mt19937_64 random(test::TestSeed());
  for (const int count : {3, 5, 8, 12}) {
    std::vector<int> at(static_cast<size_t>(count));
    std::iota(at.begin(), at.end(), 0);
    std::shuffle(at.begin(), at.end(), random);
    std::vector<MeasuredLink> links;
    uint64_t longest = 0;
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < a; ++b) {
        const int between = std::abs(at[static_cast<size_t>(a)] - at[static_cast<size_t>(b)]);
        links.push_back({a, b, static_cast<uint32_t>(10'000 * between)});
        longest = std::max<uint64_t>(longest, links.back().round_trip_us);
      }
    }
    const Sites sites = FindSites(OneEach(count), links);
    ASSERT_EQ(sites.count, count);
    EXPECT_EQ(sites.of_host[0], 0);
    uint64_t around = 0;
    for (int site = 0; site < count; ++site) around += sites.RoundTripUs(site, (site + 1) % count);
    // Of more sites than are tried in all orders, no more than the nearest neighbour's known bound.
    EXPECT_LE(around, count <= 8 ? 2 * longest : 3 * longest) << count;
  }
}

TEST(Sites, TooManyCountAsOne) {
  const int count = kMostSites + 1;
  std::vector<MeasuredLink> links;
  for (int a = 1; a < count; ++a) links.push_back({0, a, 30'000});
  const Sites sites = FindSites(OneEach(count), links);
  EXPECT_EQ(sites.count, 1);
  EXPECT_EQ(sites.LongestUs(), 30'000u);
  links.pop_back();
  links.back().round_trip_us = 10;
  EXPECT_EQ(FindSites(OneEach(count - 1), links).count, kMostSites - 1);
}

}  // namespace
}  // namespace inccl
