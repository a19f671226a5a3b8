// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "reduce/local_ranks.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// The sum over ranks of each rank's `count` largest elements of input + residual, and what is left.
std::vector<float> Reference(const Vectors& inputs, size_t count, ReduceOp op, Vectors* residuals) {
  std::vector<float> sum(inputs[0].size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    std::vector<float>& left = (*residuals)[rank];
    for (size_t i = 0; i < sum.size(); ++i) left[i] += inputs[rank][i];
    std::vector<size_t> order(sum.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return std::fabs(left[a]) > std::fabs(left[b]); });
    for (size_t j = 0; j < count; ++j) {
      const float factor = op == ReduceOp::kAvg ? 1.0f / static_cast<float>(inputs.size()) : 1.0f;
      sum[order[j]] += factor * left[order[j]];
      left[order[j]] = 0;
    }
  }
  return sum;
}

TEST(TopkTest, IsTheSumOfEachRanksLargest) {
  for (const int n : {1, 2, 3, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{4321}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        LocalRanks ranks("topk:k=0.01", n, 1, count);
        Vectors residuals(static_cast<size_t>(n), std::vector<float>(count));
        const size_t selected =
            count == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(std::lround(count * 0.01)));
        for (uint64_t step = 0; step < 4; ++step) {
          const Vectors inputs = NormalInputs(n, count, TestSeed() + step);
          const Vectors results = ranks.Run(inputs, op);
          ASSERT_EQ(results[0], Reference(inputs, selected, op, &residuals));
          ASSERT_EQ(Residuals(&ranks), residuals);
          ASSERT_EQ(ranks.sent(), std::vector<size_t>{8 * selected});
        }
      }
    }
  }
}

TEST(TopkTest, WithACodecIndicesAndValuesTravelApart) {
  LocalRanks pairs("topk:k=0.02", 3, 1, 2000), apart("topk:k=0.02|fp16", 3, 1, 2000);
  const Vectors inputs = NormalInputs(3, 2000, TestSeed());
  // The plain loops do not run the codec.
  EXPECT_EQ(pairs.Run(inputs), apart.Run(inputs));
  EXPECT_EQ(pairs.sent(), std::vector<size_t>{320});
  EXPECT_EQ(apart.sent(), (std::vector<size_t>{160, 160}));
}

TEST(TopkTest, ThresholdSelectorsAgreeOnALengthAndConserve) {
  constexpr size_t kCount = 20000;
  for (const char* select : {"sampled", "sidco"}) {
    for (const int n : {1, 2, 3, 8}) {
      LocalRanks ranks(std::string("topk:k=0.01,select=") + select, n, 1, kCount);
      for (uint64_t step = 0; step < 8; ++step) {
        Vectors inputs = NormalInputs(n, kCount, TestSeed() + step);
        if (n == 3) std::fill(inputs[1].begin(), inputs[1].end(), 0.0f);
        const Vectors before = Residuals(&ranks);
        const Vectors results = ranks.Run(inputs);
        ExpectConserved(&ranks, inputs, before, results[0], 1e-6);
        ASSERT_EQ(ranks.sent().size(), 2u);
        EXPECT_EQ(ranks.sent()[0], 4u);
        EXPECT_GE(ranks.sent()[1], 8 * kCount / 200) << select;
        EXPECT_LE(ranks.sent()[1], 8 * kCount / 50) << select;
      }
    }
  }
}

TEST(TopkTest, ZerosTiesAndOddValues) {
  for (const char* select : {"exact", "sampled", "sidco"}) {
    const std::string spec = std::string("topk:k=0.1,select=") + select;
    LocalRanks zeros(spec, 2, 1, 50);
    EXPECT_EQ(zeros.Run(Vectors(2, std::vector<float>(50)))[0], std::vector<float>(50));
    LocalRanks equal(spec, 2, 1, 50);
    const std::vector<float> result = equal.Run(Vectors(2, std::vector<float>(50, -1.0f)))[0];
    EXPECT_EQ(std::count(result.begin(), result.end(), -2.0f), 5);
    EXPECT_EQ(std::count(result.begin(), result.begin() + 5, -2.0f), 5);
    LocalRanks odd(spec, 2, 1, 50);
    Vectors inputs = NormalInputs(2, 50, TestSeed());
    inputs[1][20] = std::numeric_limits<float>::quiet_NaN();
    inputs[0][30] = -std::numeric_limits<float>::infinity();
    const std::vector<float> sum = odd.Run(inputs)[0];
    EXPECT_TRUE(std::isnan(sum[20]));
    EXPECT_EQ(sum[30], -std::numeric_limits<float>::infinity());
    for (const std::vector<float>& residual : Residuals(&odd)) {
      for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(TopkTest, ImpossibleIndicesAreAnError) {
  const std::unique_ptr<ReducerState> state = Make("topk:k=0.5")->NewState({.rows = 1, .cols = 4});
  ASSERT_TRUE(state->Take().ok());
  const float input[4] = {1, 2, 3, 4};
  float output[4] = {5, 6, 7, 8};
  CollectiveArgs args;
  args.nranks = 1;
  state->Begin(args, reinterpret_cast<const std::byte*>(input),
               reinterpret_cast<std::byte*>(output));
  std::vector<std::byte> words;
  ASSERT_TRUE(state->Produce(0, &words).ok());
  const uint32_t wrong = 4;
  std::memcpy(words.data(), &wrong, sizeof wrong);
  const Status status = state->Consume(0, words, {});
  EXPECT_EQ(status.code(), Code::kInternalError);
  EXPECT_NE(status.message().find("index 4 of 4"), std::string::npos) << status.message();
  state->End(false, 1);
  EXPECT_EQ(output[0], 5);
}

}  // namespace
}  // namespace inccl::test
