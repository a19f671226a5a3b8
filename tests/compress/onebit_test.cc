// SPDX-License-Identifier: Apache-2.0
//
// onebit against its definition, written here as plain loops: payload bytes, sums over every
// algorithm, and 50 steps with residuals, bit for bit; what the residuals hold is what the results
// lack, and stays below the bound of error feedback.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "compress/block_code_calls.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Residuals = std::vector<std::unique_ptr<Residual>>;

// ---------------------------------------------------------------- the definition

// The mean of magnitudes of one block: 32 partial sums, then halves added to halves.
float MeanOf(const float* x, size_t count) {
  float part[32] = {};
  for (size_t i = 0; i < count; ++i) part[i % 32] += std::fabs(x[i]);
  for (size_t n = 16; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) part[i] += part[i + n];
  }
  return part[0] / static_cast<float>(count);
}

// What a vector becomes, block by block.
Floats Decoded(const Floats& x, size_t block) {
  Floats y(x.size());
  for (size_t at = 0; at < x.size(); at += block) {
    const size_t end = std::min(x.size(), at + block);
    const float mean = MeanOf(&x[at], end - at);
    for (size_t i = at; i < end; ++i) y[i] = std::signbit(x[i]) ? -mean : mean;
  }
  return y;
}

// The decoded contributions in the order of ranks.
Floats TotalOf(const Vectors& contributions, size_t block) {
  Floats total(contributions[0].size());
  for (const Floats& x : contributions) {
    const Floats y = Decoded(x, block);
    for (size_t i = 0; i < y.size(); ++i) total[i] += y[i];
  }
  return total;
}

double Norm(const Floats& x) {
  double square = 0;
  for (const float e : x) square += double{e} * double{e};
  return std::sqrt(square);
}

Floats Minus(const Floats& a, const Floats& b) {
  Floats difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return difference;
}

Floats Plus(const Floats& a, const Floats& b) {
  Floats sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

// ---------------------------------------------------------------- calls

constexpr Algorithm kOwned[] = {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kTree,
                                Algorithm::kHierarchical};
std::string SpecOf(size_t block) { return "onebit:block=" + std::to_string(block); }

TEST(Onebit, ResultsAreTheDefinitions) {
  Rng rng(TestSeed());
  for (const size_t block : {32u, 64u, 128u, 256u}) {
    for (const size_t n : {2u, 3u, 8u}) {
      CodecWorld world(*MakeCodec(SpecOf(block)), static_cast<int>(n));
      for (const size_t count : {1u, 33u, 256u, 1000u, 5000u}) {
        const Vectors inputs = Inputs(n, count, &rng);
        const Floats expected = Decoded(TotalOf(inputs, block), block);
        for (const Algorithm algorithm : kAll) {
          ASSERT_EQ(Sum(&world, algorithm, inputs), expected)
              << Name(algorithm) << " block " << block << " n " << n << " count " << count;
        }
      }
    }
  }
}

// With so many ranks partial sums are fp32 elements at last, whose order is the algorithm's.
TEST(Onebit, ManyRanksSendSumsAsElements) {
  Rng rng(TestSeed());
  constexpr size_t kMany = 40, kCount = 3000;
  const Vectors inputs = Inputs(kMany, kCount, &rng);
  const Floats total = TotalOf(inputs, 256), expected = Decoded(total, 256);
  CodecWorld world(*MakeCodec("onebit"), kMany);
  EXPECT_EQ(Sum(&world, Algorithm::kTwoShot, inputs), expected);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
    const Floats result = Sum(&world, algorithm, inputs);
    for (size_t i = 0; i < kCount; ++i) {
      if (std::fabs(total[i]) > 1e-3f) {
        ASSERT_NEAR(result[i], expected[i], 1e-3) << Name(algorithm) << " " << i;
      }
    }
  }
}

// The payload of a rank's contribution: its rank, its length, scales, sign bits.
TEST(Onebit, PayloadsAreAsDocumented) {
  Floats x(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? -2.0f : 1.0f;
  x[299] = 0;
  x[298] = -0.0f;
  const auto state = (*MakeCodec("onebit:block=128"))->NewState();
  ASSERT_TRUE(state->Begin({.nranks = 4, .rank = 2, .count = x.size()}).ok());
  std::vector<std::byte> payload(1000);
  const Term in{{Form::kInput}, reinterpret_cast<std::byte*>(x.data()), 1200};
  Term out{{Form::kSum, 1}, payload.data(), 1000};
  ASSERT_TRUE(state->Combine({0, 0, 300}, {&in, 1}, {&out, 1}).ok());
  ASSERT_EQ(out.bytes, 8u + (2 * 4 + 32) + (4 + 6));
  uint32_t entry[2];
  float scales[3];
  std::memcpy(entry, payload.data(), sizeof entry);
  std::memcpy(scales, payload.data() + 8, 8);
  std::memcpy(scales + 2, payload.data() + 48, 4);
  EXPECT_EQ(entry[0], 2u);
  EXPECT_EQ(entry[1], out.bytes - 8);
  EXPECT_EQ(scales[0], MeanOf(x.data(), 128));
  EXPECT_EQ(scales[1], MeanOf(x.data() + 128, 128));
  EXPECT_EQ(scales[2], MeanOf(x.data() + 256, 44));
  for (size_t i = 0; i < x.size(); ++i) {
    const std::byte* signs = payload.data() + (i < 256 ? 16 + i / 8 : 52 + (i - 256) / 8);
    ASSERT_EQ((std::to_integer<int>(*signs) >> i % 8 & 1) != 0, std::signbit(x[i])) << i;
  }
}

TEST(Onebit, ExtremesHaveAScale) {
  CodecWorld world(*MakeCodec("onebit"), 2);
  const float top = std::numeric_limits<float>::max(), tiny = 0x1p-149f;
  // Magnitudes whose sum overflows have a mean.
  Vectors inputs = {Floats(600, top / 4), Floats(600, -top / 8)};
  for (const float x : Sum(&world, Algorithm::kTwoShot, inputs)) ASSERT_EQ(x, top / 8);
  inputs = {Floats(600, tiny), Floats(600, -0.0f)};
  for (const float x : Sum(&world, Algorithm::kRing, inputs)) ASSERT_EQ(x, tiny);
  inputs[0][300] = std::numeric_limits<float>::infinity();
  const Floats result = Sum(&world, Algorithm::kTree, inputs);
  for (size_t i = 0; i < 600; ++i) ASSERT_EQ(std::isnan(result[i]), i / 256 == 1) << i;
}

// ---------------------------------------------------------------- residuals

Residuals MakeResiduals(size_t n, size_t count) {
  Residuals residuals;
  for (size_t r = 0; r < n; ++r) {
    residuals.push_back(std::make_unique<Residual>(count, ResidualOptions{}));
  }
  return residuals;
}

// Error feedback of contributions and of totals by the definition.
struct Feedback {
  Vectors contribution;  // by rank
  Floats total;
  double least = 1;  // the share of energy that a code keeps, at least
  double largest_step = 0;

  Feedback(size_t n, size_t count) : contribution(n, Floats(count)), total(count) {}
  Floats Step(const Vectors& inputs) {
    Vectors corrected;
    double norms = 0;
    for (size_t r = 0; r < inputs.size(); ++r) {
      corrected.push_back(Plus(inputs[r], contribution[r]));
      contribution[r] = Left(corrected[r]);
      norms += Norm(inputs[r]);
    }
    largest_step = std::max(largest_step, norms);
    const Floats sum = Plus(TotalOf(corrected, 256), total);
    total = Left(sum);
    return Decoded(sum, 256);
  }
  Floats Left(const Floats& x) {
    const Floats left = Minus(x, Decoded(x, 256));
    const double kept = 1 - std::pow(Norm(left) / Norm(x), 2);
    least = std::min(least, kept);
    return left;
  }
};

// |e'| <= q |g + e| with q^2 = 1 - least keeps |e| below q / (1 - q) |g|: so the sum of the ranks'
// residuals stays below that of all contributions, and that of the totals below the same of what
// the contributions' codes add up to, at most 1 / (1 - q) of the contributions.
TEST(OnebitFeedback, FiftyStepsLoseOnlyWhatTheResidualsHold) {
  Rng rng(TestSeed());
  constexpr int kSteps = 50;
  constexpr size_t kCount = 5000;
  for (const Algorithm algorithm : kOwned) {
    for (const size_t n : {2u, 3u, 8u}) {
      SCOPED_TRACE(std::string(Name(algorithm)) + " n " + std::to_string(n));
      const HostMap hosts = CodecWorld::HostsFor(static_cast<int>(n));
      if (!HasSchedule(Collective::kAllReduce, algorithm, static_cast<int>(n), &hosts)) continue;
      CodecWorld world(*MakeCodec("onebit"), static_cast<int>(n));
      Residuals residuals = MakeResiduals(n, kCount);
      world.UseResiduals(&residuals);
      Feedback expected(n, kCount);
      std::vector<double> exact(kCount), got(kCount);
      const Vectors constant = Inputs(n, kCount, &rng);
      for (int step = 1; step <= kSteps; ++step) {
        Vectors inputs = Inputs(n, kCount, &rng);  // a part that stays and noise, as gradients
        for (size_t r = 0; r < n; ++r) inputs[r] = Plus(inputs[r], constant[r]);
        const Floats result = Sum(&world, algorithm, inputs);
        world.EndResiduals(true, static_cast<uint64_t>(step));
        ASSERT_EQ(result, expected.Step(inputs)) << "step " << step;
        for (size_t i = 0; i < kCount; ++i) {
          got[i] += double{result[i]};
          for (const Floats& x : inputs) exact[i] += double{x[i]};
        }
      }
      std::vector<double> held(kCount);
      for (const auto& residual : residuals) {
        Floats values(kCount);
        ASSERT_TRUE(residual->Export(values).ok());
        for (size_t i = 0; i < kCount; ++i) held[i] += double{values[i]};
      }
      double lost = 0;
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(exact[i] - got[i], held[i], 1e-3) << i;
        lost += std::pow(exact[i] - got[i], 2);
      }
      const double q = std::sqrt(1 - expected.least);
      const double bound = expected.largest_step * q / (1 - q) * (1 + 1 / (1 - q));
      EXPECT_LT(std::sqrt(lost), bound);
    }
  }
}

Floats Held(const Residuals& residuals, size_t count) {
  Floats held(count);
  for (const auto& residual : residuals) {
    Floats values(count);
    EXPECT_TRUE(residual->Export(values).ok());
    held = Plus(held, values);
  }
  return held;
}

// Owners change with the algorithm; some algorithms have none. No error of a total is stuck.
TEST(OnebitFeedback, ErrorsOfTotalsMoveWhenOwnersChange) {
  Rng rng(TestSeed());
  constexpr size_t kRanks = 3, kCount = 4000;
  CodecWorld world(*MakeCodec("onebit"), kRanks);
  Residuals residuals = MakeResiduals(kRanks, kCount);
  world.UseResiduals(&residuals);
  const Vectors inputs = Inputs(kRanks, kCount, &rng);
  Floats in = Plus(Plus(inputs[0], inputs[1]), inputs[2]);
  uint64_t operation = 0;
  for (const Algorithm algorithm :
       {Algorithm::kTwoShot, Algorithm::kTree, Algorithm::kRing, Algorithm::kTwoShot}) {
    const Floats before = Held(residuals, kCount), sum = Sum(&world, algorithm, inputs);
    world.EndResiduals(true, ++operation);
    const Floats after = Held(residuals, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(in[i] + before[i], sum[i] + after[i], 1e-4) << Name(algorithm) << " " << i;
    }
  }
  // Without owners the rounding of the total is lost, and former errors come back.
  Sum(&world, Algorithm::kOneShot, inputs);
  world.EndResiduals(true, ++operation);
  for (size_t r = 0; r < kRanks; ++r) {
    Floats values(kCount);
    ASSERT_TRUE(residuals[r]->Export(values).ok());
    for (const float value : values) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(OnebitFeedback, FailedAndRolledBackCallsLeaveNoTrace) {
  Rng rng(TestSeed());
  constexpr size_t kRanks = 3, kCount = 3000;
  CodecWorld world(*MakeCodec("onebit"), kRanks);
  Residuals residuals = MakeResiduals(kRanks, kCount);
  world.UseResiduals(&residuals);
  const Vectors inputs = Inputs(kRanks, kCount, &rng);
  Sum(&world, Algorithm::kTwoShot, inputs);
  world.EndResiduals(true, 1);
  const Floats second = Sum(&world, Algorithm::kTwoShot, inputs);
  world.EndResiduals(false, 2);
  ASSERT_EQ(Sum(&world, Algorithm::kTwoShot, inputs), second) << "after a failure";
  world.EndResiduals(true, 3);
  for (const auto& residual : residuals)
    ASSERT_TRUE(residual->Settle({world.lineage(), {{2, 3}}}).ok());
  ASSERT_EQ(Sum(&world, Algorithm::kTwoShot, inputs), second) << "after a rollback";
  world.EndResiduals(true, 3);
  // Also where the rolled back call has moved errors of totals.
  Sum(&world, Algorithm::kTree, inputs);
  world.EndResiduals(true, 4);
  for (const auto& residual : residuals)
    ASSERT_TRUE(residual->Settle({world.lineage(), {{3, 4}}}).ok());
  const Floats fourth = Sum(&world, Algorithm::kTwoShot, inputs);
  world.EndResiduals(false, 4);
  EXPECT_NE(fourth, second);
  for (const auto& residual : residuals) ASSERT_TRUE(residual->Reset().ok());
  EXPECT_EQ(Sum(&world, Algorithm::kTwoShot, inputs), Decoded(TotalOf(inputs, 256), 256));
  world.EndResiduals(true, 5);
}

}  // namespace
}  // namespace inccl::test
