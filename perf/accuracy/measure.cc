// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/measure.h"

#include <cmath>
#include <cstddef>
#include <limits>

namespace inccl::tools {
namespace {

template <class Real>
Errors Compare(const std::vector<Real>& result, const std::vector<double>& exact) {
  Errors errors;
  double power = 0, result_power = 0, product = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double value = double{result[i]};
    const double difference = value - exact[i];
    errors.square += difference * difference;
    power += exact[i] * exact[i];
    result_power += value * value;
    product += value * exact[i];
    // A maximum that keeps a NaN.
    if (!(std::fabs(difference) <= errors.max_error)) errors.max_error = std::fabs(difference);
  }
  if (power == 0) {
    const bool right = errors.square == 0;
    errors.vnmse = right ? 0 : std::numeric_limits<double>::infinity();
    errors.cosine = right ? 1 : 0;
  } else {
    errors.vnmse = errors.square / power;
    errors.cosine = result_power == 0 ? 0 : product / std::sqrt(power * result_power);
  }
  if (std::isnan(errors.square)) errors.max_error = errors.square;
  return errors;
}

}  // namespace

std::vector<double> ExactSum(const Vectors& inputs) {
  std::vector<double> sum(inputs[0].size(), 0.0);
  for (const std::vector<float>& input : inputs) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{input[i]};
  }
  return sum;
}

Errors ErrorsOf(const std::vector<float>& result, const std::vector<double>& exact) {
  return Compare(result, exact);
}

Errors ErrorsOf(const std::vector<double>& result, const std::vector<double>& exact) {
  return Compare(result, exact);
}

std::vector<double> LayerErrors(const std::vector<float>& result, const std::vector<double>& exact,
                                const std::vector<Layer>& layers) {
  std::vector<double> errors;
  std::ptrdiff_t first = 0;
  for (const Layer& layer : layers) {
    const auto last = first + static_cast<std::ptrdiff_t>(layer.count);
    const std::vector<float> part(result.begin() + first, result.begin() + last);
    errors.push_back(ErrorsOf(part, {exact.begin() + first, exact.begin() + last}).vnmse);
    first = last;
  }
  return errors;
}

}  // namespace inccl::tools
