// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/steps.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace inccl::tools {

Result<StepErrors> OverSteps(const Way& way, const Vectors& inputs, uint64_t steps, bool residual) {
  Result<std::unique_ptr<Ranks>> ranks = Ranks::Create(way, static_cast<int>(inputs.size()));
  if (!ranks.ok()) return ranks.status();
  if (residual) {
    if (Status s = (*ranks)->UseResiduals(inputs[0].size()); !s.ok()) return s;
  }
  const std::vector<double> exact = ExactSum(inputs);
  std::vector<double> mean(exact.size(), 0.0);
  StepErrors errors;
  const auto number = static_cast<double>(steps);
  for (uint64_t step = 1; step <= steps; ++step) {
    Result<Sum> sum = (*ranks)->Take(inputs, step);
    if (!sum.ok()) return sum.status();
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += double{sum->result[i]} / number;
    errors.bits += sum->bits / number;
    errors.vnmse += ErrorsOf(sum->result, exact).vnmse / number;
  }
  errors.vnmse_of_mean = ErrorsOf(mean, exact).vnmse;
  return errors;
}

}  // namespace inccl::tools
