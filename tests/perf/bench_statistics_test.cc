// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "perf/support/statistics.h"
#include "support/seed.h"

namespace inccl::perf {
namespace {

TEST(BenchStatistics, MedianOfOddEvenAndNothing) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 7}), 6);
}

TEST(BenchStatistics, PercentileByDefinition) {
  Rng rng(test::TestSeed());
  for (const size_t count : {1u, 2u, 19u, 20u, 99u, 100u, 101u, 1000u}) {
    std::vector<double> values(count);
    for (double& v : values) v = static_cast<double>(rng.Below(50));
    for (const double p : {0.0, 0.5, 0.99, 1.0}) {
      // By definition: the smallest value with at least p * count values not above it.
      double expected = *std::max_element(values.begin(), values.end());
      for (const double v : values) {
        const auto below =
            std::count_if(values.begin(), values.end(), [v](double w) { return w <= v; });
        if (static_cast<double>(below) >= p * static_cast<double>(count)) {
          expected = std::min(expected, v);
        }
      }
      EXPECT_EQ(Percentile(values, p), expected) << count << " values, p = " << p;
    }
  }
  EXPECT_EQ(Percentile({}, 0.99), 0);
}

TEST(BenchStatistics, P99OfTwentyIsTheLargest) {
  std::vector<double> values(20);
  std::iota(values.begin(), values.end(), 1);
  EXPECT_EQ(Percentile(values, 0.99), 20);
}

TEST(BenchStatistics, RanksOfAnIteration) {
  // Three ranks, two iterations.
  const std::vector<double> all = {1, 10, 2, 60, 6, 20};
  EXPECT_EQ(CombineRanks(all, 2, Average::kRank0), (std::vector<double>{1, 10}));
  EXPECT_EQ(CombineRanks(all, 2, Average::kMean), (std::vector<double>{3, 30}));
  EXPECT_EQ(CombineRanks(all, 2, Average::kMin), (std::vector<double>{1, 10}));
  EXPECT_EQ(CombineRanks(all, 2, Average::kMax), (std::vector<double>{6, 60}));
  EXPECT_TRUE(CombineRanks({}, 0, Average::kMax).empty());
}

}  // namespace
}  // namespace inccl::perf
