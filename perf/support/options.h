// SPDX-License-Identifier: Apache-2.0
//
// The command line of the benchmarks: nccl-tests' options with their meaning, then ours.
#ifndef INCCL_PERF_SUPPORT_OPTIONS_H_
#define INCCL_PERF_SUPPORT_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "perf/support/operation.h"
#include "perf/support/statistics.h"

namespace inccl::perf {

// What else makes the same call, in the same run.
enum class Baseline : uint8_t { kNone, kMpi, kNccl };

// How rows are printed. kAuto: kNarrow on a terminal that is too narrow for kWide, else kWide.
enum class TableKind : uint8_t { kAuto, kWide, kNarrow, kCsv };

struct BenchOptions {
  // Sizes, bytes.
  uint64_t min_bytes = 32u << 20, max_bytes = 32u << 20, step_bytes = 1u << 20, step_factor = 1;
  // What is called.
  std::vector<DataType> types = {DataType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};
  std::vector<int> roots = {0};  // -1, alone: all
  // How it is measured.
  uint64_t iterations = 20, warmup = 5, aggregated = 1, checks = 1, cycles = 1;
  Average average = Average::kMax;
  double row_seconds = 0;  // fewer iterations where they would take longer; 0: all
  // Ours.
  int ranks = 0;    // > 0: fork as many
  int threads = 0;  // > 0: as many threads of this process; 1 goes with any launcher
  std::vector<std::string> codecs = {"none"};
  std::string algorithm;  // empty: the library's choice
  int channels = 0;       // 0: the library's choice
  int vectors = 1;        // of a call; several: fused
  bool reproducible = false;
  int timeout_s = 0;  // deadline of a call without progress; 0: the library's
  std::string data = "normal";
  uint64_t seed = 1;
  bool digest = false;
  Baseline baseline = Baseline::kNone;
  std::string nccl_library;  // of INCCL_NCCL_LIBRARY; empty: the loader's
  bool cuda = false;         // buffers in memory of GPUs, calls on streams of theirs
  bool mem_alloc = false;    // buffers of ccl_mem_alloc, or ccl_mem_alloc_device
  bool limit = false;        // the streaming limit, interleaved
  bool tails = false;        // p99 and maximum of every side in the table
  TableKind table = TableKind::kAuto;
  bool init_by_id = false;  // unique id handed around, instead of the launcher's environment
  std::string json;         // file; empty: none
  double link_gbps = 0, link_us = 0;
  // Variables to be set before the library is used.
  std::map<std::string, std::string> environment;
};

// Options, or a text to print and nothing else to do (--help), or the wish for the version.
struct ParsedOptions {
  BenchOptions options;
  std::string help;
  bool version = false;
};

// kInvalidArgument names the option and the value. `operation`: codecs other than none are for
// all-reduce only.
Result<ParsedOptions> ParseOptions(Operation operation, const std::string& program, int argc,
                                   const char* const* argv);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_OPTIONS_H_
