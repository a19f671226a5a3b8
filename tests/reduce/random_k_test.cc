// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "reduce/local_ranks.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

std::vector<float> PlainSum(const Vectors& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs[rank][i];
  }
  return sum;
}

TEST(RandomKTest, SumsTheSelectedAndLeavesTheRestInTheResidual) {
  for (const int n : {1, 2, 3, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{99}, size_t{5000}}) {
      LocalRanks ranks("random_k:k=0.1", n, 1, count);
      const Vectors inputs = NormalInputs(n, count, TestSeed());
      const Vectors before = Residuals(&ranks);
      const Vectors results = ranks.Run(inputs);
      const std::vector<float> sum = PlainSum(inputs);
      size_t selected = 0;
      for (size_t i = 0; i < count; ++i) {
        if (results[0][i] == 0) continue;
        ++selected;
        ASSERT_EQ(results[0][i], sum[i]);
      }
      EXPECT_EQ(selected, count == 0 ? 0 : std::max<size_t>(1, (count + 5) / 10));
      ExpectConserved(&ranks, inputs, before, results[0], 1e-6);
    }
  }
}

TEST(RandomKTest, ASweepVisitsEveryElementOnce) {
  constexpr size_t kCount = 1003;
  LocalRanks ranks("random_k:k=0.03,residual=0", 2, 1, kCount);
  const Vectors inputs(2, std::vector<float>(kCount, 1.0f));
  std::set<std::vector<float>> sweeps;
  for (int sweep = 0; sweep < 3; ++sweep) {
    std::vector<float> visits(kCount), first;
    for (int step = 0; step < 34; ++step) {  // ceil(1003 / 30)
      const Vectors results = ranks.Run(inputs);
      for (size_t i = 0; i < kCount; ++i) visits[i] += results[0][i];
      if (step == 0) first = results[0];
    }
    EXPECT_EQ(visits, std::vector<float>(kCount, 2.0f));
    EXPECT_TRUE(sweeps.insert(first).second) << "the same permutation again";
  }
}

// Which blocks of 7 elements a call visits does not depend on the values; the last has 2 elements.
TEST(RandomKTest, BlocksTravelWhole) {
  constexpr size_t kCount = 1003, kBlock = 7, kBlocks = 144;
  for (const int n : {1, 2, 3, 8}) {
    LocalRanks ranks("random_k:block=7,k=0.1", n, 17, 59);
    Vectors before = Residuals(&ranks);
    for (int sweep = 0; sweep < 2; ++sweep) {
      std::vector<int> visits(kBlocks);
      for (uint64_t step = 0; step < 11; ++step) {  // ceil(144 / 14)
        const Vectors inputs = NormalInputs(n, kCount, TestSeed() + step);
        const std::vector<float> result = ranks.Run(inputs)[0];
        ASSERT_NO_FATAL_FAILURE(ExpectConserved(&ranks, inputs, before, result, 1e-6));
        Vectors z = inputs;
        for (size_t rank = 0; rank < z.size(); ++rank) {
          for (size_t i = 0; i < kCount; ++i) z[rank][i] += before[rank][i];
        }
        const std::vector<float> sum = PlainSum(z);
        before = Residuals(&ranks);
        size_t elements = 0;
        for (size_t block = 0; block < kBlocks; ++block) {
          const size_t first = block * kBlock, end = std::min(kCount, first + kBlock);
          const bool visited = result[first] != 0;
          visits[block] += visited ? 1 : 0;
          elements += visited ? end - first : 0;
          for (size_t i = first; i < end; ++i) {
            ASSERT_EQ(result[i], visited ? sum[i] : 0.0f);
            ASSERT_EQ(before[0][i], visited ? 0.0f : z[0][i]);
          }
        }
        ASSERT_EQ(ranks.sent(), std::vector<size_t>{elements * sizeof(float)});
      }
      EXPECT_EQ(visits, std::vector<int>(kBlocks, 1));
    }
  }
}

TEST(RandomKTest, BlocksMayBeLargerThanTheTensor) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{99}}) {
    LocalRanks ranks("random_k:block=100,k=0.01", 3, count, 1);
    const Vectors inputs = NormalInputs(3, count, TestSeed());
    EXPECT_EQ(ranks.Run(inputs)[0], PlainSum(inputs));
  }
}

TEST(RandomKTest, UnbiasedMeansTendToTheSum) {
  constexpr size_t kCount = 200;
  constexpr int kSteps = 4000;
  for (const auto& [op, spec] : {std::pair(ReduceOp::kSum, "random_k:k=0.1,unbiased=1"),
                                 std::pair(ReduceOp::kAvg, "random_k:k=0.1,unbiased=1"),
                                 std::pair(ReduceOp::kSum, "random_k:block=21,k=0.1,unbiased=1")}) {
    LocalRanks ranks(spec, 3, 10, 20);  // of blocks, one has 11 elements
    const Vectors inputs = NormalInputs(3, kCount, TestSeed());
    const std::vector<float> sum = PlainSum(inputs);
    std::vector<double> mean(kCount);
    for (int step = 0; step < kSteps; ++step) {
      const Vectors results = ranks.Run(inputs, op, TestSeed());
      for (size_t i = 0; i < kCount; ++i) mean[i] += static_cast<double>(results[0][i]) / kSteps;
    }
    // Each sweep of 10 steps visits an element once, so the mean is exact.
    for (size_t i = 0; i < kCount; ++i) {
      const double expected = static_cast<double>(sum[i]) / (op == ReduceOp::kAvg ? 3 : 1);
      ASSERT_NEAR(mean[i], expected, 1e-5 * (1 + std::fabs(expected)));
    }
  }
}

TEST(RandomKTest, NoResidualOfWhatIsNotFinite) {
  LocalRanks ranks("random_k:k=0.5", 2, 1, 100);
  Vectors inputs = NormalInputs(2, 100, TestSeed());
  inputs[0][3] = std::numeric_limits<float>::quiet_NaN();
  inputs[1][7] = std::numeric_limits<float>::infinity();
  (void)ranks.Run(inputs);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const float value : ranks.Residual(rank)) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace inccl::test
