// SPDX-License-Identifier: Apache-2.0
//
// Whether a run of the benchmarks has become slower than a saved one. Machines and hours differ, so
// what is compared is not time but time over the streaming limit that was measured in the same run.
#ifndef INCCL_PERF_REGRESS_COMPARE_H_
#define INCCL_PERF_REGRESS_COMPARE_H_

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace inccl::perf {

// The ratios to the limit of each case, a case being everything that a row is but its numbers.
using Ratios = std::map<std::string, std::vector<double>>;

// Adds the rows of one file of a benchmark to `ratios`; a case may be in several files, or several
// times in one. kInvalidArgument naming `file` if it is none, and if none of its rows has a limit.
Status AddRatios(const nlohmann::json& document, const std::string& file, Ratios* ratios);

struct Comparison {
  enum class Verdict { kSame, kFaster, kSlower, kOnlySaved, kOnlyNew };
  std::string name;           // of the case
  double saved = 0, now = 0;  // medians
  Verdict verdict = Verdict::kSame;
  double change() const { return saved > 0 ? now / saved : 0; }
};

// One for each case of either, in the order of their names. Slower: `now` is more than (1 +
// tolerance) times `saved`; faster: the other way round.
std::vector<Comparison> Compare(const Ratios& saved, const Ratios& now, double tolerance);

// Lines for people, ending in one that sums up.
std::string FormatComparison(const std::vector<Comparison>& comparisons, double tolerance);

}  // namespace inccl::perf

#endif  // INCCL_PERF_REGRESS_COMPARE_H_
