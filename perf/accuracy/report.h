// SPDX-License-Identifier: Apache-2.0
//
// Rows of results, as a table for people or as comma-separated values.
#ifndef INCCL_PERF_ACCURACY_REPORT_H_
#define INCCL_PERF_ACCURACY_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "perf/accuracy/way.h"

namespace inccl::tools {

struct Row {
  std::string data;
  int nranks = 0;
  uint64_t count = 0;
  Way way;
  double bits = 0;  // per element and phase, averaged over ranks and repeats
  double vnmse = 0;
  double max_error = 0;
  double cosine = 0;
  double bias = -1;         // vNMSE of the mean over steps; negative: not measured
  double layer_vnmse = -1;  // of the layer with the largest; negative: not measured
  std::string layer;        // its name
};

// One value of a line of comma-separated values, in quotes where it must be.
std::string CsvField(const std::string& text);

class Report {
 public:
  explicit Report(bool csv) : csv_(csv) {}
  void Header(uint64_t repeats, uint64_t steps) const;
  // An error if the row has not arrived.
  Status Print(const Row& row) const;
  // A way that was asked for and that the library does not know; on stderr where a line of its own
  // would spoil the values.
  void Skipped(const std::string& why) const;

 private:
  bool csv_;
};

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_REPORT_H_
