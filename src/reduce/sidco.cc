// SPDX-License-Identifier: Apache-2.0
#include "reduce/sidco.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace inccl::sidco {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};

// Of the exceedances over `from`; all of x reach it.
Moments MomentsAbove(std::span<const float> x, double from) {
  double sum = 0, squares = 0;
  for (const float value : x) {
    const double excess = std::fabs(static_cast<double>(value)) - from;
    sum += excess;
    squares += excess * excess;
  }
  const auto count = static_cast<double>(x.size());
  const double mean = sum / count;
  return {.mean = mean, .variance = squares / count - mean * mean};
}

// The value that a fraction `ratio` of a generalized Pareto distribution exceeds.
double Quantile(const Moments& moments, double ratio) {
  const double square = moments.mean * moments.mean;
  if (!(moments.variance > 0)) return moments.mean;
  const double scale = moments.mean * (square / moments.variance + 1) / 2;
  const double shape = (square / moments.variance - 1) / 2;
  if (std::fabs(shape) < 1e-6) return -scale * std::log(ratio);  // exponential
  return scale * (1 - std::exp(shape * std::log(ratio))) / shape;
}

}  // namespace

double Threshold(std::span<const float> x, double ratio, int stages) {
  if (ratio >= kFirstRatio) stages = 1;
  const double wanted = ratio * static_cast<double>(x.size());
  std::vector<float> above;
  std::span<const float> left = x;
  double threshold = 0;
  for (int stage = 0; stage < stages && !left.empty(); ++stage) {
    const double part = std::min(1.0, wanted / static_cast<double>(left.size()));
    const double aim = stages == 1  ? ratio
                       : stage == 0 ? kFirstRatio
                                    : std::pow(part, 1.0 / (stages - stage));
    threshold += Quantile(MomentsAbove(left, threshold), aim);
    if (stage + 1 == stages) break;
    std::vector<float> next;
    next.reserve(left.size() / 2);
    for (const float value : left) {
      if (std::fabs(static_cast<double>(value)) >= threshold) next.push_back(value);
    }
    above.swap(next);
    left = above;
  }
  return threshold;
}

}  // namespace inccl::sidco
