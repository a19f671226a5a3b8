// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "integration/compressed_world.h"
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

// The blocks that some rank has among its `count` of largest norm, summed over all ranks.
std::vector<float> BlockReference(const Vectors& inputs, size_t size, size_t count, ReduceOp op,
                                  Vectors* residuals, size_t* travelled) {
  const size_t elements = inputs[0].size(), blocks = (elements + size - 1) / size;
  std::vector<bool> selected(blocks);
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    std::vector<float>& left = (*residuals)[rank];
    std::vector<double> norms(blocks);
    for (size_t i = 0; i < elements; ++i) {
      left[i] += inputs[rank][i];
      norms[i / size] += std::pow(static_cast<double>(left[i]), 2);
    }
    std::vector<size_t> order(blocks);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return norms[a] > norms[b]; });
    for (size_t j = 0; j < count; ++j) selected[order[j]] = true;
  }
  std::vector<float> sum(elements);
  *travelled = 0;
  for (size_t i = 0; i < elements; ++i) {
    if (!selected[i / size]) continue;
    ++*travelled;
    for (std::vector<float>& left : *residuals) {
      sum[i] += left[i];
      left[i] = 0;
    }
    if (op == ReduceOp::kAvg) sum[i] /= static_cast<float>(inputs.size());
  }
  return sum;
}

// Deep Gradient Compression, in plain loops: velocities add up in the residual, and both begin
// again where an element has been sent.
TEST(TopkTest, MomentumWithAndWithoutMasking) {
  constexpr size_t kCount = 1000, kSelected = 20;
  constexpr float kMomentum = 0.875f;
  for (const bool mask : {true, false}) {
    for (const size_t block : {1, 10}) {
      SCOPED_TRACE(testing::Message() << "mask " << mask << ", block " << block);
      constexpr int kRanks = 3;
      LocalRanks ranks("topk:k=0.02,momentum=0.875,mask=" + std::to_string(mask ? 1 : 0) +
                           ",block=" + std::to_string(block),
                       kRanks, 1, kCount);
      Vectors residuals(kRanks, std::vector<float>(kCount)), velocities = residuals;
      for (uint64_t step = 0; step < 6; ++step) {
        const Vectors inputs = NormalInputs(kRanks, kCount, TestSeed() + step);
        Vectors sent = inputs;
        for (size_t rank = 0; rank < kRanks; ++rank) {
          for (size_t i = 0; i < kCount; ++i) {
            sent[rank][i] = velocities[rank][i] = inputs[rank][i] + kMomentum * velocities[rank][i];
          }
        }
        size_t travelled = 0;
        const std::vector<float> expected =
            block == 1 ? Reference(sent, kSelected, ReduceOp::kSum, &residuals)
                       : BlockReference(sent, block, kSelected / block, ReduceOp::kSum, &residuals,
                                        &travelled);
        for (size_t rank = 0; mask && rank < kRanks; ++rank) {
          for (size_t i = 0; i < kCount; ++i) {
            if (residuals[rank][i] == 0) velocities[rank][i] = 0;  // it has been sent
          }
        }
        ASSERT_EQ(ranks.Run(inputs)[0], expected) << "step " << step;
        ASSERT_EQ(Residuals(&ranks), residuals);
      }
      // Velocities are part of what is exported and reset.
      const Vectors inputs = NormalInputs(kRanks, kCount, TestSeed() + 100);
      std::vector<std::vector<std::byte>> saved;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        saved.push_back(ranks.state(rank)->Export().value());
      }
      const std::vector<float> next = ranks.Run(inputs)[0];
      for (size_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(ranks.state(rank)->Import(saved[rank]).ok());
      }
      EXPECT_EQ(ranks.Run(inputs)[0], next);
      for (size_t rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(ranks.state(rank)->Reset().ok());
      Vectors none(kRanks, std::vector<float>(kCount));
      size_t unused = 0;
      const std::vector<float> first = ranks.Run(inputs)[0];
      EXPECT_EQ(first, block == 1 ? Reference(inputs, kSelected, ReduceOp::kSum, &none)
                                  : BlockReference(inputs, block, kSelected / block, ReduceOp::kSum,
                                                   &none, &unused));
    }
  }
}

// A call that fails, or that is taken back, leaves the velocity as it was.
TEST(TopkTest, AVelocityIsThatOfCommittedCalls) {
  constexpr size_t kCount = 200;
  LocalRanks ranks("topk:k=0.05,momentum=0.5", 2, 1, kCount),
      others("topk:k=0.05,momentum=0.5", 2, 1, kCount);
  const auto inputs = [](uint64_t step) { return NormalInputs(2, kCount, TestSeed() + step); };
  ranks.Run(inputs(0));
  others.Run(inputs(0));
  ranks.Run(inputs(1));
  for (size_t rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(ranks.state(rank)->Settle({ranks.lineage(), {{1, 4}}}).ok());
  CollectiveArgs args;
  args.nranks = 2;
  std::vector<float> result(kCount);
  const Vectors lost = inputs(2);
  for (size_t rank = 0; rank < 2; ++rank) {  // begins and fails
    ASSERT_TRUE(ranks.state(rank)->Take(ranks.lineage()).ok());
    ranks.state(rank)->Begin(args, reinterpret_cast<const std::byte*>(lost[rank].data()),
                             reinterpret_cast<std::byte*>(result.data()));
    ranks.state(rank)->End({});
  }
  EXPECT_EQ(ranks.Run(inputs(3)), others.Run(inputs(3)));
}

// An element that was not finite counts as 0 in the velocity, too.
TEST(TopkTest, AVelocityIsFinite) {
  LocalRanks ranks("topk:k=0.1,momentum=0.5", 2, 1, 50);
  Vectors inputs = NormalInputs(2, 50, TestSeed());
  inputs[1][20] = std::numeric_limits<float>::quiet_NaN();
  inputs[0][30] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(ranks.Run(inputs)[0][20]));
  for (int step = 0; step < 20; ++step) {
    const Vectors results = ranks.Run(NormalInputs(2, 50, TestSeed() + 1));
    for (const float value : results[0]) ASSERT_TRUE(std::isfinite(value));
  }
}

// The share grows smaller in eight steps: k = 2^-8 is halved each time.
TEST(TopkTest, WarmUp) {
  for (const size_t block : {1, 4}) {
    constexpr size_t kCount = 4096, kCalls = 14;
    LocalRanks ranks("topk:k=0.00390625,warm=14,block=" + std::to_string(block), 1, 1, kCount);
    for (size_t call = 0; call < kCalls + 3; ++call) {
      const Vectors inputs = NormalInputs(1, kCount, TestSeed() + call);
      const Vectors before = Residuals(&ranks);
      const std::vector<float> result = ranks.Run(inputs)[0];
      const size_t halvings = call < kCalls ? 1 + call / 2 : 8;
      const auto sent = static_cast<size_t>(
          std::count_if(result.begin(), result.end(), [](float x) { return x != 0; }));
      EXPECT_EQ(sent, kCount >> halvings) << "call " << call << ", block " << block;
      ExpectConserved(&ranks, inputs, before, result, 1e-6);
    }
  }
}

TEST(TopkTest, BlocksOfAnyRankAreSummedOverAll) {
  for (const int n : {1, 2, 3, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, size_t{4321}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        LocalRanks ranks("topk:block=12,k=0.05", n, count, 1);
        Vectors residuals(static_cast<size_t>(n), std::vector<float>(count));
        const size_t blocks = (count + 11) / 12;
        const size_t selected =
            count == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(std::lround(blocks * 0.05)));
        const size_t words = ((blocks + 31) / 32 + ranks.n() - 1) / ranks.n();
        for (uint64_t step = 0; step < 4; ++step) {
          const Vectors inputs = NormalInputs(n, count, TestSeed() + step);
          const Vectors results = ranks.Run(inputs, op);
          size_t travelled = 0;
          ASSERT_EQ(results[0], BlockReference(inputs, 12, selected, op, &residuals, &travelled));
          ASSERT_EQ(Residuals(&ranks), residuals);
          ASSERT_EQ(ranks.sent(),
                    (std::vector<size_t>{4 * words * ranks.n(), 4 * words, 4 * travelled}));
        }
      }
    }
  }
}

// Ranks select different numbers of blocks, without a round for it.
TEST(TopkTest, ThresholdSelectorsOfBlocksConserve) {
  constexpr size_t kCount = 200000;
  for (const char* select : {"sampled", "sidco"}) {
    LocalRanks ranks(std::string("topk:block=16,k=0.01,select=") + select, 3, 1, kCount);
    for (uint64_t step = 0; step < 4; ++step) {
      Vectors inputs = NormalInputs(3, kCount, TestSeed() + step);
      std::fill(inputs[1].begin(), inputs[1].end(), 0.0f);
      const Vectors before = Residuals(&ranks);
      const Vectors results = ranks.Run(inputs);
      ExpectConserved(&ranks, inputs, before, results[0], 1e-6);
      ASSERT_EQ(ranks.sent().size(), 3u);
      EXPECT_GE(ranks.sent()[2], 4 * kCount / 200) << select;
      EXPECT_LE(ranks.sent()[2], 3 * 4 * kCount / 50) << select;
    }
  }
}

TEST(TopkTest, ZerosTiesAndOddValuesOfBlocks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string spec = "topk:block=5,k=0.2";  // 2 of 10 blocks
  LocalRanks zeros(spec, 2, 1, 50);
  EXPECT_EQ(zeros.Run(Vectors(2, std::vector<float>(50)))[0], std::vector<float>(50));
  LocalRanks equal(spec, 2, 1, 50);
  const std::vector<float> result = equal.Run(Vectors(2, std::vector<float>(50, -1.0f)))[0];
  EXPECT_EQ(std::count(result.begin(), result.end(), -2.0f), 10);
  EXPECT_EQ(std::count(result.begin(), result.begin() + 10, -2.0f), 10);
  // The squares of the largest and the smallest values are neither infinite nor zero.
  LocalRanks extreme(spec, 1, 1, 50);
  Vectors inputs(1, std::vector<float>(50));
  inputs[0][11] = inputs[0][12] = 2e38f;
  inputs[0][20] = 3e38f;
  inputs[0][30] = -kInfinity;
  std::vector<float> sum = extreme.Run(inputs)[0];
  EXPECT_EQ(sum[30], -kInfinity);
  EXPECT_EQ(sum[20], 3e38f);
  EXPECT_EQ(sum[11], 0);
  inputs[0][41] = std::numeric_limits<float>::quiet_NaN();
  inputs[0][11] = inputs[0][12] = inputs[0][20] = 0;
  sum = extreme.Run(inputs)[0];
  EXPECT_TRUE(std::isnan(sum[41]));
  EXPECT_EQ(sum[30], -kInfinity);
  for (const float value : extreme.Residual(0)) EXPECT_TRUE(std::isfinite(value));
  inputs[0].assign(50, 0.0f);
  inputs[0][46] = 1e-38f;
  inputs[0][15] = 2e-42f;
  LocalRanks small(spec, 1, 1, 50);
  EXPECT_EQ(small.Run(inputs)[0], inputs[0]);
}

// docs/reducers.md has these numbers: shares of the energy of all ranks' gradients that a call
// sends, pairs and blocks with at most as many bytes.
TEST(TopkTest, BlocksKeepMoreOfRecordedGradientsInAsManyBytes) {
  struct Row {
    int n, step;
    const char* k;  // of blocks
    double pairs, blocks16, blocks64, blocks256;
  };
  const Row rows[] = {
      {4, 5, "0.018", 0.38, 0.40, 0.37, 0.32},   {4, 300, "0.018", 0.65, 0.72, 0.70, 0.64},
      {4, 600, "0.018", 0.68, 0.74, 0.72, 0.69}, {8, 5, "0.03", 0.39, 0.53, 0.50, 0.47},
      {8, 300, "0.03", 0.66, 0.83, 0.81, 0.81},  {8, 600, "0.03", 0.66, 0.81, 0.81, 0.80},
  };
  for (const Row& row : rows) {
    const Vectors inputs = Gradients(row.step, row.n);
    double energy = 0, n = row.n, most = 0;
    for (const std::vector<float>& input : inputs) {
      for (const float value : input) energy += std::pow(static_cast<double>(value), 2);
    }
    const std::string blocks = std::string(",k=") + row.k;
    for (const auto& [spec, expected] : {std::pair<std::string, double>("topk:k=0.01", row.pairs),
                                         {"topk:block=16" + blocks, row.blocks16},
                                         {"topk:block=64" + blocks, row.blocks64},
                                         {"topk:block=256" + blocks, row.blocks256}}) {
      SCOPED_TRACE(spec + " at step " + std::to_string(row.step) + " of " + std::to_string(row.n));
      LocalRanks ranks(spec, row.n, 1, inputs[0].size());
      (void)ranks.Run(inputs);
      double left = 0;
      for (const std::vector<float>& residual : Residuals(&ranks)) {
        for (const float value : residual) left += std::pow(static_cast<double>(value), 2);
      }
      EXPECT_NEAR(1 - left / energy, expected, 0.006);
      // Bytes that a rank sends: an all-gather, or an all-to-all, an all-gather and an all-reduce.
      double bytes = (n - 1) * static_cast<double>(ranks.sent()[0]);
      if (ranks.sent().size() == 3) {
        bytes = (n - 1) *
                (static_cast<double>(ranks.sent()[0]) / n + static_cast<double>(ranks.sent()[1]) +
                 2 * static_cast<double>(ranks.sent()[2]) / n);
        EXPECT_LE(bytes, most);
      }
      most = std::max(most, bytes);
    }
  }
}

// What `wrong`, as the first word of this round, leads to on a tensor of 4 elements.
void ExpectInternalError(const char* spec, int round, uint32_t wrong, const char* text) {
  const std::unique_ptr<ReducerState> state = Make(spec)->NewState({.rows = 1, .cols = 4});
  ASSERT_TRUE(state->Take(Lineage()).ok());
  const float input[4] = {1, 2, 3, 4};
  float output[4] = {5, 6, 7, 8};
  CollectiveArgs args;
  args.nranks = 1;
  state->Begin(args, reinterpret_cast<const std::byte*>(input),
               reinterpret_cast<std::byte*>(output));
  std::vector<std::byte> words;
  for (int before = 0; before < round; ++before) {
    ASSERT_TRUE(state->Produce(before, &words).ok());
    ASSERT_TRUE(state->Consume(before, words, {}).ok());
  }
  ASSERT_TRUE(state->Produce(round, &words).ok());
  std::memcpy(words.data(), &wrong, sizeof wrong);
  const Status status = state->Consume(round, words, {});
  EXPECT_EQ(status.code(), Code::kInternalError);
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  state->End({});
  EXPECT_EQ(output[0], 5);
}

TEST(TopkTest, ImpossibleIndicesAndBlocksAreAnError) {
  ExpectInternalError("topk:k=0.5", 0, 4, "topk: rank 0 sent index 4 of 4");
  ExpectInternalError("topk:block=2,k=0.5", 1, 1u << 3, "topk: rank 0 sent bit 3 of 2");
}

}  // namespace
}  // namespace inccl::test
