// SPDX-License-Identifier: Apache-2.0
//
// The JSON file of a run: {"header": {...}, "rows": [...]}, two records for each row of the table,
// the call out of place and the one in place. docs/perf-tools.md lists the fields.
#ifndef INCCL_PERF_SUPPORT_RECORD_H_
#define INCCL_PERF_SUPPORT_RECORD_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "perf/support/row.h"

namespace inccl::perf {

struct RunHeader {
  std::string version;  // of the library
  std::string program;  // "allreduce_bench"
  std::string command;  // as typed
  std::string data;     // data set
  uint64_t seed = 0;    // of the data
  int nranks = 1;
  std::string launcher;  // "mpi", "fork" or "threads"
  std::string device;    // the GPUs' name; "" on buffers of the host
  int devices = 0;       // GPUs in this host
  uint64_t iterations = 0, warmup = 0, aggregated = 1;
  std::string average;                // how the times of the ranks become one
  std::string baseline;               // "mpi", "nccl 2.27.7", "" without
  double link_gbps = 0, link_us = 0;  // of the emulated network; 0: none
};

// One record. Values that do not exist are null; numbers that are not finite are too.
nlohmann::ordered_json RecordOf(const Row& row, bool in_place);

// The records as comma-separated values: the line of names, and a line for each placement of a row.
// What is null is empty.
std::string CsvHeading();
std::string CsvLines(const Row& row);

// The whole file; host, CPU and date are added to the header here.
nlohmann::ordered_json DocumentOf(const RunHeader& header, const std::vector<Row>& rows);

// Checks that `path` can be written, leaving what it holds: an error before a long run is cheap.
Status CheckWritable(const std::string& path);
Status WriteDocument(const std::string& path, const nlohmann::ordered_json& document);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_RECORD_H_
