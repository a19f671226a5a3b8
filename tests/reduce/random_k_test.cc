// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
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

TEST(RandomKTest, UnbiasedMeansTendToTheSum) {
  constexpr size_t kCount = 200;
  constexpr int kSteps = 4000;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    LocalRanks ranks("random_k:k=0.1,unbiased=1", 3, 10, 20);
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
