// SPDX-License-Identifier: Apache-2.0
//
// SIDCo's thresholds against quantiles in closed form, and on recorded gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "integration/compressed_world.h"
#include "reduce/select.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 1 << 20;

// The fit of one stage is exact for a generalized Pareto distribution: quantile a (d^-c - 1) / c.
TEST(SidcoTest, FindsTheQuantilesOfParetoDistributions) {
  std::mt19937_64 engine(TestSeed());
  std::uniform_real_distribution<double> uniform(1e-12, 1);
  for (const double shape : {-0.2, 0.0, 0.1}) {
    std::vector<float> x(kCount), scratch;
    for (float& value : x) {
      const double u = uniform(engine);
      const double size = shape == 0 ? -std::log(u) : (std::pow(u, -shape) - 1) / shape;
      value = static_cast<float>(engine() % 2 == 0 ? size : -size);
    }
    for (const double ratio : {0.1, 0.01, 0.001}) {
      const double exact = shape == 0 ? -std::log(ratio) : (std::pow(ratio, -shape) - 1) / shape;
      for (const int stages : {1, 2, 4}) {
        EXPECT_NEAR(sidco::Threshold(x, ratio, &scratch, stages), exact, 0.06 * exact)
            << "shape " << shape << " ratio " << ratio << " stages " << stages;
      }
    }
  }
}

// One stage of the fits by which the paper's other two variants begin, on what they are exact for.
TEST(SidcoTest, ExponentialAndGammaFitsFindTheirQuantiles) {
  std::mt19937_64 engine(TestSeed());
  const auto draw = [&](auto distribution) {
    std::vector<float> x(kCount);
    for (float& value : x) value = static_cast<float>(distribution(engine));
    return x;
  };
  std::vector<float> scratch;
  const std::vector<float> exponential = draw(std::exponential_distribution<double>(2));
  std::vector<float> gamma = draw(std::gamma_distribution<double>(0.6, 3));
  for (const double ratio : {0.1, 0.01, 0.001}) {
    const double exact = -std::log(ratio) / 2;
    for (const int stages : {1, 4}) {
      EXPECT_NEAR(sidco::Threshold(exponential, ratio, &scratch, stages, sidco::Fit::kExponential),
                  exact, 0.03 * exact);
    }
    std::vector<float> sorted = gamma;
    std::sort(sorted.begin(), sorted.end());
    const double quantile = sorted[static_cast<size_t>((1 - ratio) * kCount)];
    // The paper drops a factor that is near 1 far out only.
    EXPECT_NEAR(sidco::Threshold(gamma, ratio, &scratch, 1, sidco::Fit::kGamma), quantile,
                (ratio > 0.05 ? 0.45 : 0.25) * quantile);
    // Zeros have no logarithm, and change no quantile of the rest.
    std::vector<float> half = gamma;
    half.resize(2 * kCount);
    EXPECT_NEAR(sidco::Threshold(half, ratio / 2, &scratch, 1, sidco::Fit::kGamma),
                sidco::Threshold(gamma, ratio, &scratch, 1, sidco::Fit::kGamma), 1e-6);
  }
}

TEST(SidcoTest, SelectsAboutWhatIsAskedForOnRecordedGradients) {
  for (const SelectorKind kind : {SelectorKind::kSidco, SelectorKind::kSidcoExponential,
                                  SelectorKind::kSidcoGamma, SelectorKind::kSampled}) {
    for (const double k : {0.01, 0.001}) {
      for (const int step : {5, 300, 600}) {
        const Vectors gradients = Gradients(step, 8);
        for (size_t rank = 0; rank < gradients.size(); ++rank) {
          std::vector<uint32_t> indices;
          Selector(kind).Select(gradients[rank], k, rank, &indices);
          const double ratio = static_cast<double>(indices.size()) /
                               (k * static_cast<double>(gradients[rank].size()));
          const bool fitted = kind != SelectorKind::kSampled;  // a sample has 4 of 4096
          const double least = kind == SelectorKind::kSidcoExponential ? 0.8 : 0.85;
          EXPECT_GT(ratio, fitted ? least : 0.5)
              << "k " << k << " step " << step << " rank " << rank;
          EXPECT_LT(ratio, fitted ? 1.2 : 2.0) << "k " << k << " step " << step << " rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
