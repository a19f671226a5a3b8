// SPDX-License-Identifier: Apache-2.0
//
// qsgd and qsgd_ms against their definition: unbiased codes on the scale of the window's largest
// magnitude, exact sums with room for all ranks.
#include "compress/published/qsgd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec_world.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Vectors = std::vector<std::vector<float>>;

Vectors Uniform(size_t n, size_t count, Rng* rng) {
  Vectors inputs(n, std::vector<float>(count));
  for (std::vector<float>& x : inputs) {
    for (float& e : x) e = static_cast<float>(rng->Uniform() * 2 - 1);
  }
  return inputs;
}

std::vector<float> Sum(const char* spec, const Vectors& inputs, uint64_t seed = 1,
                       uint64_t step = 0, ReduceOp op = ReduceOp::kSum) {
  HbiDriver driver(spec, static_cast<int>(inputs.size()), DataType::kFloat32, op, inputs[0].size(),
                   seed, step);
  return RunFloat(&driver, Way::kRing, 1024, inputs);
}

double Largest(const Vectors& inputs) {
  double largest = 0;
  for (const std::vector<float>& x : inputs) {
    for (const float e : x) largest = std::max(largest, std::fabs(double{e}));
  }
  return largest;
}

// Every result is a whole number of units M / s, between the floors and the ceilings of the ranks'.
TEST(Qsgd, ResultsAreSumsOfRoundedElements) {
  Rng rng(TestSeed());
  for (const int q : {1, 4, 8, 12}) {
    const double levels = (1 << q) - 1;
    const Vectors inputs = Uniform(3, 3000, &rng);
    const std::vector<float> result =
        Sum(("qsgd:q=" + std::to_string(q)).c_str(), inputs, rng.Next());
    const double unit = Largest(inputs) / levels;
    for (size_t i = 0; i < result.size(); ++i) {
      const double code = result[i] / unit;
      ASSERT_NEAR(code, std::round(code), 1e-3);
      double low = 0, high = 0;
      for (const std::vector<float>& x : inputs) {
        low += std::floor(x[i] / unit - 1e-4);
        high += std::ceil(x[i] / unit + 1e-4);
      }
      ASSERT_GE(std::round(code), low);
      ASSERT_LE(std::round(code), high);
    }
  }
}

// The mean over many roundings is the element, within six standard deviations; for the elements
// that the scale favours least, too.
TEST(Qsgd, RoundingIsUnbiased) {
  Rng rng(TestSeed());
  constexpr int kSteps = 4000;
  Vectors inputs = {{1.0f, 0.01f, -0.01f, 0.3f, -0.7f, 0.99f, 1e-4f, 0.5f}};
  inputs.push_back(inputs[0]);
  std::vector<double> mean(inputs[0].size());
  const uint64_t seed = rng.Next();
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> result = Sum("qsgd:q=3", inputs, seed, static_cast<uint64_t>(step));
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += result[i] / kSteps;
  }
  const double unit = 1.0 / 7;
  for (size_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(mean[i], 2.0 * inputs[0][i], 6 * unit * std::sqrt(2 * 0.25 / kSteps)) << i;
  }
}

// Two ranks with equal elements do not round alike.
TEST(Qsgd, RanksRoundIndependently) {
  const Vectors inputs(2, std::vector<float>(4000, 0.5f));
  Vectors scaled = inputs;
  scaled[0][0] = scaled[1][0] = 1.0f;
  const std::vector<float> result = Sum("qsgd:q=1", scaled);
  int odd = 0;
  for (size_t i = 1; i < result.size(); ++i) odd += result[i] == 1.0f ? 1 : 0;
  // One of two: with probability 1/2.
  EXPECT_NEAR(odd, 2000, 6 * std::sqrt(4000 * 0.25));
}

// What n ranks can sum up to at most: nothing wraps, nothing saturates.
TEST(Qsgd, LargestSumsAreExact) {
  for (const char* spec : {"qsgd:q=1", "qsgd:q=7", "qsgd:q=8", "qsgd:q=16"}) {
    for (const size_t n : {2u, 9u, 64u}) {
      for (const float value : {3.0f, -3.0f}) {
        const Vectors inputs(n, std::vector<float>(600, value));
        for (const float x : Sum(spec, inputs)) {
          ASSERT_EQ(x, value * static_cast<float>(n)) << spec << " n " << n;
        }
        for (const float x : Sum(spec, inputs, 1, 0, ReduceOp::kAvg)) ASSERT_EQ(x, value);
      }
    }
  }
  EXPECT_EQ(qsgd::Width(1, 255), 9u);
  EXPECT_EQ(qsgd::Width(8, 255), 12u);
  const auto codec = *MakeCodec("qsgd:q=16");
  const auto supports = [&](int n) {
    return codec->Supports(Collective::kAllReduce, DataType::kFloat32, ReduceOp::kSum, n).ok();
  };
  EXPECT_TRUE(supports(16384));
  EXPECT_FALSE(supports(16385));
}

// A sum that only its own rounding makes too large for the type is the largest number, in fp64 the
// sum; what no rounding explains is infinite.
TEST(Qsgd, RoundingMakesNoInfinity) {
  const auto sums = [](DataType type, double lone, double each) {
    constexpr size_t kCount = 64;
    CodecWorld world(*MakeCodec("qsgd:q=8"), 2);
    std::vector<std::vector<std::byte>> in, out;
    std::vector<CodecBuffers> buffers;
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<float> x(kCount, static_cast<float>(each));
      x[0] = rank == 0 ? static_cast<float>(lone) : 0;
      in.emplace_back(kCount * SizeOf(type));
      FromFloat(type, x.data(), in[rank].data(), kCount);
      out.emplace_back(kCount * SizeOf(type));
    }
    for (size_t rank = 0; rank < 2; ++rank) buffers.push_back({in[rank].data(), out[rank].data()});
    world.Run({.type = type, .nranks = 2, .count = kCount}, Algorithm::kTwoShot, buffers);
    std::vector<double> result(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      if (type == DataType::kFloat64) {
        std::memcpy(&result[i], out[0].data() + i * sizeof(double), sizeof(double));
      } else {
        float x = 0;
        ToFloat(type, out[0].data() + i * SizeOf(type), &x, 1);
        result[i] = static_cast<double>(x);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      if (!std::isfinite(result[i])) continue;
      const auto exact = i == 0 ? static_cast<double>(static_cast<float>(lone))
                                : 2 * static_cast<double>(static_cast<float>(each));
      EXPECT_LE(std::fabs(result[i] - exact), world.stats(0).error_bound) << "element " << i;
    }
    return result;
  };
  const auto infinite = [](const std::vector<double>& x) {
    return std::count_if(x.begin(), x.end(), [](double value) { return std::isinf(value); });
  };
  constexpr double kTop = 0x1.FFFFFEp127;
  for (const double sign : {1.0, -1.0}) {
    EXPECT_EQ(infinite(sums(DataType::kFloat16, sign * 32768, sign * 32750)), 0);
    EXPECT_EQ(infinite(sums(DataType::kFloat32, sign * 1.7014e38, sign * 1.7014e38)), 0);
    EXPECT_EQ(infinite(sums(DataType::kFloat32, sign * 1.71e38, sign * 1.7e38)), 0);
    EXPECT_EQ(infinite(sums(DataType::kFloat64, sign * kTop, sign * kTop)), 0);
    EXPECT_EQ(infinite(sums(DataType::kFloat16, sign * 40000, sign * 40000)), 63);
    EXPECT_EQ(infinite(sums(DataType::kFloat32, sign * kTop, sign * kTop)), 63);
  }
}

// Each window has its own scale.
TEST(Qsgd, LargestMagnitudeIsOfTheWindow) {
  Vectors inputs(2, std::vector<float>(kWindow + 500, 1e-3f));
  inputs[1][7] = 1000;
  const std::vector<float> result = Sum("qsgd:q=8", inputs);
  for (size_t i = kWindow; i < result.size(); ++i) ASSERT_EQ(result[i], 2e-3f);
  EXPECT_NEAR(result[7], 1000, 1000.0 / 255);
}

// ---------------------------------------------------------------- several scales

// An all-reduce through schedules, which have the second agreement.
std::vector<float> SumOverLanes(const char* spec, const Vectors& inputs, uint64_t seed) {
  const size_t n = inputs.size(), count = inputs[0].size();
  CodecWorld world(*MakeCodec(spec), static_cast<int>(n));
  Vectors outputs(n, std::vector<float>(count));
  std::vector<CodecBuffers> buffers;
  for (size_t r = 0; r < n; ++r) {
    buffers.push_back({reinterpret_cast<const std::byte*>(inputs[r].data()),
                       reinterpret_cast<std::byte*>(outputs[r].data())});
  }
  world.Run({.nranks = static_cast<int>(n), .count = count, .seed = seed, .step = 1},
            Algorithm::kTwoShot, buffers);
  for (const std::vector<float>& output : outputs) EXPECT_EQ(output, outputs[0]);
  return outputs[0];
}

// Every element is in units of the finest scale that holds it on all ranks.
TEST(QsgdMs, ElementsHaveTheFinestScaleThatHoldsThem) {
  Rng rng(TestSeed());
  const std::vector<double> levels = {7, 63, 1023};
  Vectors inputs = Uniform(3, 3000, &rng);
  for (std::vector<float>& x : inputs) {
    for (float& e : x) e *= static_cast<float>(std::ldexp(1.0, -static_cast<int>(rng.Below(12))));
  }
  const std::vector<float> result = SumOverLanes("qsgd_ms:q=3+6+10", inputs, rng.Next());
  const double largest = Largest(inputs);
  std::vector<int> used(levels.size());
  for (size_t i = 0; i < result.size(); ++i) {
    double top = 0;
    for (const std::vector<float>& x : inputs) top = std::max(top, std::fabs(double{x[i]}));
    size_t k = levels.size() - 1;
    while (k > 0 && top * levels[k] / largest > levels[0]) --k;
    ++used[k];
    const double unit = largest / levels[k], code = result[i] / unit;
    ASSERT_NEAR(code, std::round(code), 1e-3) << i;
    double low = 0, high = 0;
    for (const std::vector<float>& x : inputs) {
      low += std::floor(x[i] / unit - 1e-4);
      high += std::ceil(x[i] / unit + 1e-4);
    }
    ASSERT_GE(std::round(code), low) << i;
    ASSERT_LE(std::round(code), high) << i;
  }
  for (const int number : used) EXPECT_GT(number, 100);
}

// On heavy tails a second scale of the same width takes most of the error away; on data of one
// size it cannot do harm.
TEST(QsgdMs, ASecondScaleHelpsHeavyTails) {
  Rng rng(TestSeed());
  const auto error = [&](const char* spec, const Vectors& inputs) {
    const std::vector<float> result = SumOverLanes(spec, inputs, rng.Next());
    double wrong = 0, all = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      const double sum = double{inputs[0][i]} + double{inputs[1][i]};
      wrong += (result[i] - sum) * (result[i] - sum);
      all += sum * sum;
    }
    return wrong / all;
  };
  Vectors inputs = Uniform(2, 20000, &rng);
  EXPECT_LT(error("qsgd_ms:q=3+7", inputs), 1.05 * error("qsgd:q=3", inputs));
  for (std::vector<float>& x : inputs) {
    for (float& e : x) e /= static_cast<float>(0.01 + rng.Uniform());
  }
  EXPECT_LT(error("qsgd_ms:q=3+7", inputs), 0.5 * error("qsgd:q=3", inputs));
}

// Several rows, and several slices of side information in each.
TEST(QsgdMs, LongVectors) {
  Rng rng(TestSeed());
  constexpr size_t kCount = kWindow + 70001;
  Vectors inputs(2, std::vector<float>(kCount));
  for (std::vector<float>& x : inputs) {
    for (size_t i = 0; i < kCount; ++i) {
      const double tail = (rng.Uniform() * 2 - 1) / (0.01 + rng.Uniform());
      x[i] = static_cast<float>(i < kWindow ? tail : tail * 1e-3);
    }
  }
  const std::vector<float> result = SumOverLanes("qsgd_ms:q=3+5+8", inputs, 2);
  const double levels[] = {7, 31, 255};
  for (size_t first = 0; first < kCount; first += kWindow) {
    const size_t end = std::min<size_t>(kCount, first + kWindow);
    double largest = 0;
    for (const std::vector<float>& x : inputs) {
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
    }
    for (size_t i = first; i < end; ++i) {
      const double top = std::max(std::fabs(inputs[0][i]), std::fabs(inputs[1][i]));
      size_t k = 2;
      while (k > 0 && top * levels[k] / largest > 7) --k;
      const double sum = double{inputs[0][i]} + double{inputs[1][i]};
      ASSERT_LE(std::fabs(result[i] - sum), 2.001 * largest / levels[k]) << i;
    }
  }
}

TEST(QsgdMs, LargestSumsAreExact) {
  for (const float value : {2.0f, -2.0f}) {
    const Vectors inputs(9, std::vector<float>(700, value));
    for (const float x : SumOverLanes("qsgd_ms:q=4+8", inputs, 1)) ASSERT_EQ(x, 9 * value);
  }
}

}  // namespace
}  // namespace inccl::test
