// SPDX-License-Identifier: Apache-2.0
//
// Sums of sparse tensors against sums of integers: exact for every support.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "reduce/local_ranks.h"
#include "reduce/sketch.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

std::vector<uint32_t> RandomSupport(size_t size, std::mt19937_64* engine) {
  std::set<uint32_t> support;
  while (support.size() < size) support.insert(static_cast<uint32_t>((*engine)()));
  return {support.begin(), support.end()};
}

// Whatever the cells say is exact, and the rest is named.
TEST(SketchTest, PeelsExactlyOrNamesTheRest) {
  std::mt19937_64 engine(TestSeed());
  size_t incomplete = 0, trials = 0;
  for (size_t size = 0; size < 3000; size = size < 40 ? size + 1 : size * 5 / 4) {
    for (int trial = 0; trial < 20; ++trial, ++trials) {
      Sketch sketch;
      sketch.SetSupport(RandomSupport(size, &engine), engine());
      EXPECT_GE(static_cast<double>(sketch.cells()), 1.23 * static_cast<double>(size));
      std::vector<uint64_t> sum(size), cells(sketch.cells()), peeled(size);
      for (int vectors = 0; vectors < 3; ++vectors) {
        std::vector<uint64_t> values(size);
        for (size_t i = 0; i < size; ++i) sum[i] += values[i] = engine();  // all 64 bits
        sketch.Add(values, cells);
      }
      std::vector<uint32_t> rest;
      sketch.Peel(cells, peeled, &rest);
      for (const uint32_t place : rest) peeled[place] = sum[place];
      ASSERT_EQ(peeled, sum);
      incomplete += rest.empty() ? 0 : 1;
    }
  }
  EXPECT_LT(incomplete, trials / 20);
}

TEST(SketchTest, EqualIndicesWouldRemain) {
  Sketch sketch;
  const uint32_t support[] = {7, 7, 9};
  sketch.SetSupport(support, 1);
  std::vector<uint64_t> cells(sketch.cells()), values = {1, 2, 3}, peeled(3);
  sketch.Add(values, cells);
  std::vector<uint32_t> rest;
  sketch.Peel(cells, peeled, &rest);
  EXPECT_EQ(rest, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(peeled[2], 3u);
}

// Multiples of 2^-10 below 2^10: sums are exact in any order.
Vectors SparseInputs(int n, size_t count, double density, std::mt19937_64* engine) {
  Vectors inputs(static_cast<size_t>(n), std::vector<float>(count));
  std::uniform_real_distribution<double> uniform;
  for (std::vector<float>& input : inputs) {
    for (float& value : input) {
      if (uniform(*engine) >= density) continue;
      value = static_cast<float>(static_cast<int>((*engine)() % 2000001) - 1000000) / 1024;
    }
  }
  return inputs;
}

TEST(CountSketchTest, IsTheExactSumOfSparseTensors) {
  std::mt19937_64 engine(TestSeed());
  size_t second_rounds = 0;
  for (const int n : {1, 2, 3, 7, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{100}, size_t{20000}}) {
      for (const double density : {0.0, 0.001, 0.01, 0.3, 1.0}) {
        for (int trial = 0; trial < 3; ++trial) {
          const Vectors inputs = SparseInputs(n, count, density, &engine);
          std::vector<float> sum(count);
          for (const std::vector<float>& input : inputs) {
            for (size_t i = 0; i < count; ++i) sum[i] += input[i];
          }
          LocalRanks ranks("count_sketch", n, count, 1);
          ASSERT_EQ(ranks.Run(inputs, ReduceOp::kSum, engine())[0], sum);
          second_rounds += ranks.sent().size() == 4 ? 1 : 0;
          std::vector<float> mean = sum;
          for (float& value : mean) value /= static_cast<float>(n);  // the only rounding
          ASSERT_EQ(ranks.Run(inputs, ReduceOp::kAvg)[0], mean);
        }
      }
    }
  }
  RecordProperty("second_rounds", static_cast<int>(second_rounds));
}

// Until one needs it. The values of the rest travel once more.
TEST(CountSketchTest, TheSecondRoundIsExactToo) {
  std::mt19937_64 engine(TestSeed());
  LocalRanks ranks("count_sketch", 2, 1, 300);
  for (int call = 0; call < 200000; ++call) {
    const Vectors inputs = SparseInputs(2, 300, 0.15, &engine);
    const std::vector<float> result = ranks.Run(inputs)[0];
    for (size_t i = 0; i < 300; ++i) ASSERT_EQ(result[i], inputs[0][i] + inputs[1][i]);
    if (ranks.sent().size() == 4) return;
  }
  FAIL() << "no sketch has left a rest";
}

// The sum is larger than the largest float; the average is not.
TEST(CountSketchTest, AveragesLargeElements) {
  for (const size_t zeros : {size_t{0}, size_t{100}}) {
    Vectors inputs(3, std::vector<float>(20 + zeros));
    for (std::vector<float>& input : inputs) std::fill_n(input.begin(), 20, 3e38f);
    LocalRanks ranks("count_sketch", 3, 1, 20 + zeros);
    const std::vector<float> mean = ranks.Run(inputs, ReduceOp::kAvg)[0];
    for (size_t i = 0; i < 20; ++i) EXPECT_FLOAT_EQ(mean[i], 3e38f);
    EXPECT_EQ(ranks.Run(inputs)[0][0], std::numeric_limits<float>::infinity());
  }
}

// Each element is rounded to a grid of 2^-59 of the largest for 8 ranks, and the sum once.
TEST(CountSketchTest, RoundsOnceOnAFineGrid) {
  std::mt19937_64 engine(TestSeed());
  for (const float scale : {1.0f, 1e-30f, 1e30f}) {
    Vectors inputs = NormalInputs(8, 2000, TestSeed());
    double largest = 0;
    for (std::vector<float>& input : inputs) {
      for (float& value : input) {
        value *= scale * (engine() % 50 == 0 ? 1.0f : 1e-6f);
        largest = std::max(largest, std::fabs(static_cast<double>(value)));
      }
    }
    LocalRanks ranks("count_sketch", 8, 1, 2000);
    const std::vector<float> result = ranks.Run(inputs)[0];
    for (size_t i = 0; i < result.size(); ++i) {
      double sum = 0;  // 8 elements of 24 bits, at most 2^24 apart, and some rounding below that
      for (const std::vector<float>& input : inputs) sum += static_cast<double>(input[i]);
      const double tolerance = std::ldexp(std::fabs(sum), -24) + std::ldexp(largest, -50);
      ASSERT_NEAR(result[i], sum, tolerance) << i;
    }
  }
}

TEST(CountSketchTest, OddValuesStayWhereTheyAre) {
  Vectors inputs(3, std::vector<float>(100));
  inputs[0][5] = 2;
  inputs[1][5] = 3;
  inputs[1][50] = std::numeric_limits<float>::quiet_NaN();
  inputs[2][60] = -std::numeric_limits<float>::infinity();
  inputs[2][61] = -0.0f;
  inputs[2][62] = std::numeric_limits<float>::denorm_min();
  LocalRanks ranks("count_sketch", 3, 1, 100);
  std::vector<float> result = ranks.Run(inputs)[0];
  EXPECT_TRUE(std::isnan(result[50]));
  EXPECT_EQ(result[60], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(result[5], 5);
  EXPECT_EQ(std::count(result.begin(), result.end(), 0.0f), 96);
  inputs[1][50] = inputs[2][60] = 0;
  inputs[0][5] = inputs[1][5] = 0;
  result = ranks.Run(inputs)[0];  // denormal values alone
  EXPECT_EQ(result[62], std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(std::count(result.begin(), result.end(), 0.0f), 99);
}

// At 1 % density, in both directions, less than 0.15 of the dense bytes.
TEST(CountSketchTest, SendsAFractionOfTheDenseBytes) {
  constexpr size_t kCount = 1 << 18;
  std::mt19937_64 engine(TestSeed());
  Vectors inputs = SparseInputs(4, kCount, 0.01, &engine);
  for (size_t rank = 1; rank < 4; ++rank) {  // the same support on all ranks
    for (size_t i = 0; i < kCount; ++i) inputs[rank][i] = inputs[0][i];
  }
  LocalRanks ranks("count_sketch", 4, 1, kCount);
  (void)ranks.Run(inputs);
  const std::vector<size_t>& sent = ranks.sent();
  // All-to-all and all-gather move 3/4 of their vectors, an all-reduce 6/4.
  const double moved = 0.75 * static_cast<double>(sent[0]) + 3.0 * static_cast<double>(sent[1]) +
                       1.5 * static_cast<double>(sent[2]);
  EXPECT_LT(moved, 0.15 * 1.5 * 4 * kCount);
  EXPECT_LT(moved, 0.06 * 1.5 * 4 * kCount);
}

}  // namespace
}  // namespace inccl::test
