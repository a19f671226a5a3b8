// SPDX-License-Identifier: Apache-2.0
//
// qsgd_ms is unbiased where an element's scale changes, too: an element at the boundary, or a hair
// to either side of it, on some ranks or on all. A rule that decides on the rounded code, or that
// clamps codes of elements the finer scale does not hold, pulls the mean towards zero there. Seeds
// are fixed, so that nothing fails by chance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compress/codec_world.h"

namespace inccl::test {
namespace {

using Vectors = std::vector<std::vector<float>>;

constexpr int kRanks = 3;
constexpr int kSteps = 6000;

// The largest magnitude is 9: with 7 and 63 levels the finer scale holds what is at most
// 7 / 63 * 9 = 1, and there every quotient is exact.
constexpr double kLargest = 9, kCoarse = kLargest / 7, kFine = kLargest / 63;

float Steps(float x, int ulps) {
  for (; ulps > 0; --ulps) x = std::nextafterf(x, 100);
  for (; ulps < 0; ++ulps) x = std::nextafterf(x, 0);
  return x;
}

std::vector<float> AroundTheBoundary() {
  std::vector<float> values;
  for (const int ulps : {-2, -1, 0, 1, 2}) values.push_back(Steps(1, ulps));
  for (const float off : {1e-5f, 1e-3f, 0.01f, 0.05f, 0.07f, 0.0714f, 0.08f, 0.15f}) {
    values.push_back(1 - off);
    values.push_back(1 + off);
  }
  return values;
}

// Every value on all ranks, with either sign; on one rank alone beside small ones; beside those of
// the other sign.
Vectors Inputs() {
  Vectors inputs(kRanks);
  const auto add = [&](float a, float b, float c) {
    inputs[0].push_back(a);
    inputs[1].push_back(b);
    inputs[2].push_back(c);
  };
  add(static_cast<float>(kLargest), 0.25f, -0.25f);
  for (const float value : AroundTheBoundary()) {
    for (const float sign : {1.0f, -1.0f}) {
      const float x = sign * value;
      add(x, x, x);
      add(0.01f, x, -0.3f);
      add(x, -x, 0.7f * x);
    }
  }
  return inputs;
}

// Of the mean of a rank's code at such a scale: the codes next to the element are taken.
double Variance(double x, double unit) {
  const double part = x / unit - std::floor(x / unit);
  return part * (1 - part) * unit * unit / kSteps;
}

TEST(QsgdMsUnbiased, AtTheBoundaryOfAScale) {
  const Vectors inputs = Inputs();
  const size_t count = inputs[0].size();
  CodecWorld world(*MakeCodec("qsgd_ms:q=3+6"), kRanks);
  Vectors outputs(kRanks, std::vector<float>(count));
  std::vector<CodecBuffers> buffers;
  for (size_t r = 0; r < kRanks; ++r) {
    buffers.push_back({reinterpret_cast<const std::byte*>(inputs[r].data()),
                       reinterpret_cast<std::byte*>(outputs[r].data())});
  }
  std::vector<double> mean(count);
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(world.Run(
        {.nranks = kRanks, .count = count, .seed = 20, .step = static_cast<uint64_t>(step)},
        Algorithm::kTwoShot, buffers));
    for (size_t i = 0; i < count; ++i) mean[i] += double{outputs[0][i]} / kSteps;
  }
  int coarse = 0, fine = 0;
  for (size_t i = 1; i < count; ++i) {
    double sum = 0, top = 0;
    for (const std::vector<float>& x : inputs) {
      sum += double{x[i]};
      top = std::max(top, std::fabs(double{x[i]}));
    }
    (top > 1 ? coarse : fine) += 1;
    double variance = 0;
    for (const std::vector<float>& x : inputs) {
      variance += Variance(double{x[i]}, top > 1 ? kCoarse : kFine);
    }
    // fp32 rounds results of up to 4: half a unit in the last place each.
    EXPECT_NEAR(mean[i], sum, 5 * std::sqrt(variance) + 0x1p-22) << i << ": " << inputs[0][i];
  }
  EXPECT_GT(coarse, 30);
  EXPECT_GT(fine, 30);
}

}  // namespace
}  // namespace inccl::test
