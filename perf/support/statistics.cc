// SPDX-License-Identifier: Apache-2.0
#include "perf/support/statistics.h"

#include <algorithm>
#include <cmath>

namespace inccl::perf {
namespace {

double Combine(std::span<const double> ranks, Average average) {
  switch (average) {
    case Average::kRank0: return ranks.front();
    case Average::kMin: return *std::min_element(ranks.begin(), ranks.end());
    case Average::kMax: return *std::max_element(ranks.begin(), ranks.end());
    case Average::kMean: break;
  }
  double sum = 0;
  for (const double time : ranks) sum += time;
  return sum / static_cast<double>(ranks.size());
}

}  // namespace

std::vector<double> CombineRanks(std::span<const double> all, size_t iterations, Average average) {
  std::vector<double> combined(iterations);
  if (iterations == 0) return combined;
  std::vector<double> ranks(all.size() / iterations);
  for (size_t i = 0; i < iterations; ++i) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = all[rank * iterations + i];
    combined[i] = Combine(ranks, average);
  }
  return combined;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(1.0, rank)) - 1;
  return values[std::min(index, values.size() - 1)];
}

}  // namespace inccl::perf
