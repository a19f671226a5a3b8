// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/rows.h"

#include <algorithm>
#include <cmath>

namespace inccl::tools {
namespace {

Algorithm Best(const TuneSample& sample, double margin) {
  const auto fastest =
      std::min_element(sample.times.begin(), sample.times.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const double usual = sample.times.at(sample.by_default);
  return fastest->second * (1 + margin) <= usual ? fastest->first : sample.by_default;
}

uint64_t Between(uint64_t low, uint64_t high) {
  const double middle = std::sqrt(static_cast<double>(low) * static_cast<double>(high));
  return std::clamp(static_cast<uint64_t>(middle), low, high - 1);
}

}  // namespace

std::vector<TunerRow> RowsOf(const TunerRow& group, const std::vector<TuneSample>& samples,
                             double margin) {
  std::vector<TunerRow> rows;
  for (size_t i = 0; i < samples.size(); ++i) {
    TunerRow row = group;
    row.algorithm = Best(samples[i], margin);
    row.max_bytes = i + 1 < samples.size() ? Between(samples[i].bytes, samples[i + 1].bytes)
                                           : samples[i].bytes;  // above it nothing was measured
    if (!rows.empty() && rows.back().algorithm == row.algorithm) rows.pop_back();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace inccl::tools
