// SPDX-License-Identifier: Apache-2.0
//
// The errors that the format's definition reached in NumPy (table.txt), and the samples on which
// they were computed.
#ifndef INCCL_PERF_ACCURACY_REFERENCE_TABLE_H_
#define INCCL_PERF_ACCURACY_REFERENCE_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "perf/accuracy/measure.h"
#include "perf/accuracy/way.h"

namespace inccl::tools {

struct TableEntry {
  std::string data;
  int nranks = 0;
  std::string way_name;  // as in the table
  Way way;
  double bits = 0;
  double vnmse = 0;  // mean over the samples
};

inline constexpr uint64_t kTableCount = uint64_t{1} << 17;  // elements per rank of generated data

// The table that was compiled in.
std::string_view TableText();

// kInvalidArgument naming the line that is not understood.
Result<std::vector<TableEntry>> ParseTable(std::string_view text);

// How many samples the table's errors are means of: four, or of the recorded gradients (early,
// middle, late) one for each `nranks` of their 8 ranks.
uint32_t TableSamples(const std::string& data, int nranks);

// Sample `sample` (from 0) of a data set of the table.
Result<Vectors> TableSample(const std::string& data, int nranks, uint32_t sample);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_REFERENCE_TABLE_H_
