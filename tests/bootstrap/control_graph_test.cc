// SPDX-License-Identifier: Apache-2.0
//
// Who has a control connection with whom, and the paths over them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "bootstrap/mesh.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

HostMap Hosts(int nranks, int per_host) {
  std::vector<uint64_t> hosts;
  for (int rank = 0; rank < nranks; ++rank) hosts.push_back(static_cast<uint64_t>(rank / per_host));
  return HostMap(hosts);
}

int Neighbours(const ControlGraph& graph, int nranks, int rank) {
  int count = 0;
  for (int peer = 0; peer < nranks; ++peer) count += graph.Linked(rank, peer) ? 1 : 0;
  return count;
}

TEST(ControlGraphTest, AllPairsUpToTheLimit) {
  EXPECT_TRUE(ControlGraph().complete());
  for (const int nranks : {1, 2, 64}) {
    const ControlGraph graph(Hosts(nranks, 1), 64);
    EXPECT_TRUE(graph.complete());
    for (int a = 0; a < nranks; ++a) EXPECT_EQ(Neighbours(graph, nranks, a), nranks - 1);
  }
  EXPECT_FALSE(ControlGraph(Hosts(65, 1), 64).complete());
  EXPECT_TRUE(ControlGraph(Hosts(65, 65), 64).complete()) << "one host";
}

TEST(ControlGraphTest, FewNeighboursInLargeCommunicators) {
  // Distances of powers of two in both directions; half of 4096 is one in both.
  EXPECT_EQ(Neighbours(ControlGraph(Hosts(4096, 1), 64), 4096, 17), 2 * 12 - 1);
  EXPECT_EQ(Neighbours(ControlGraph(Hosts(100, 1), 64), 100, 99), 2 * 7);
  // And the ranks of the host: 16, of which distances 1, 2, 4 and 8 are counted already.
  EXPECT_EQ(Neighbours(ControlGraph(Hosts(4096, 16), 64), 4096, 0), 2 * 12 - 1 + 15 - 4);
}

TEST(ControlGraphTest, BothEndsAgree) {
  Rng rng(TestSeed());
  for (int round = 0; round < 50; ++round) {
    const int nranks = 2 + static_cast<int>(rng.Below(40));
    std::vector<uint64_t> hosts;
    for (int rank = 0; rank < nranks; ++rank) hosts.push_back(rng.Below(12));
    const HostMap map(hosts);
    const ControlGraph graph(map, 1);
    bool complete = true;
    for (int a = 0; a < nranks; ++a) {
      EXPECT_FALSE(graph.Linked(a, a));
      EXPECT_TRUE(nranks == 1 || graph.Linked(a, (a + 1) % nranks)) << "a ring";
      for (int b = 0; b < nranks; ++b) {
        EXPECT_EQ(graph.Linked(a, b), graph.Linked(b, a)) << a << " " << b << " of " << nranks;
        EXPECT_TRUE(a == b || !map.SameHost(a, b) || graph.Linked(a, b));
        complete = complete && (a == b || graph.Linked(a, b));
      }
    }
    EXPECT_EQ(graph.complete(), complete);
  }
}

// Against Floyd and Warshall's distances.
TEST(ControlGraphTest, NextHopsAreOnShortestPaths) {
  Rng rng(TestSeed());
  for (int round = 0; round < 60; ++round) {
    const int nranks = 6 + static_cast<int>(rng.Below(30));
    std::vector<uint64_t> hosts;
    for (int rank = 0; rank < nranks; ++rank)
      hosts.push_back(round % 2 == 0 ? rank : rng.Below(20));
    const ControlGraph graph(HostMap(hosts), 1);
    if (graph.complete()) continue;
    std::vector<bool> gone(static_cast<size_t>(nranks));
    for (auto&& entry : gone) entry = rng.Below(4) < static_cast<uint64_t>(round % 4);
    constexpr int kFar = 1000;
    const auto n = static_cast<size_t>(nranks);
    std::vector<std::vector<int>> distance(n, std::vector<int>(n, kFar));
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        if (gone[a] || gone[b]) continue;
        if (a == b) distance[a][b] = 0;
        if (graph.Linked(static_cast<int>(a), static_cast<int>(b))) distance[a][b] = 1;
      }
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t a = 0; a < n; ++a) {
        for (size_t b = 0; b < n; ++b) {
          distance[a][b] = std::min(distance[a][b], distance[a][k] + distance[k][b]);
        }
      }
    }
    for (size_t from = 0; from < n; ++from) {
      if (gone[from]) continue;
      const std::vector<int> hops = graph.NextHops(static_cast<int>(from), gone);
      for (size_t to = 0; to < n; ++to) {
        if (to == from || distance[from][to] >= kFar) {
          EXPECT_EQ(hops[to], -1);
          continue;
        }
        ASSERT_GE(hops[to], 0);
        const auto hop = static_cast<size_t>(hops[to]);
        EXPECT_EQ(distance[from][hop], 1);
        EXPECT_EQ(distance[hop][to], distance[from][to] - 1);
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
