// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "perf/support/output.h"

namespace inccl::tools {

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

void Report::Header(uint64_t repeats, uint64_t steps) const {
  if (csv_) {
    perf::PrintOut(
        "data,nranks,count,codec,algo,bits,vnmse,max_err,cosine,bias,layer_vnmse,layer\n");
    return;
  }
  perf::PrintOut(
      "# vNMSE = |result - sum|^2 / |sum|^2 and cosine: means of {} runs; max error: their "
      "largest, absolute\n# bits: per element and phase (a phase: reduce-scatter or "
      "all-gather)\n",
      repeats);
  if (steps != 0) {
    perf::PrintOut("# bias: vNMSE of the mean of {} results that differ in step alone\n", steps);
  }
  perf::PrintOut("{:<18}{:>6}{:>9}  {:<29} {:<10}{:>7}{:>12}{:>12}{:>13}{:>12}\n", "data", "ranks",
                 "count", "codec", "algo", "bits", "vNMSE", "max error", "cosine", "bias");
}

Status Report::Print(const Row& row) const {
  if (csv_) {
    const std::string bias = row.bias < 0 ? "" : fmt::format("{:.6g}", row.bias);
    const std::string layer = row.layer_vnmse < 0 ? "" : fmt::format("{:.6g}", row.layer_vnmse);
    perf::PrintOut("{},{},{},{},{},{:.4f},{:.6g},{:.6g},{:.10f},{},{},{}\n", CsvField(row.data),
                   row.nranks, row.count, CsvField(row.way.name), row.way.algo, row.bits, row.vnmse,
                   row.max_error, row.cosine, bias, layer, CsvField(row.layer));
  } else {
    const std::string bias = row.bias < 0 ? "-" : fmt::format("{:.3g}", row.bias);
    const std::string layer =
        row.layer_vnmse < 0 ? "" : fmt::format("  {:.3g} in {}", row.layer_vnmse, row.layer);
    perf::PrintOut("{:<18}{:>6}{:>9}  {:<29} {:<10}{:>7.3f}{:>12.3g}{:>12.3g}{:>13.8f}{:>12}{}\n",
                   row.data, row.nranks, row.count, row.way.name, row.way.algo, row.bits, row.vnmse,
                   row.max_error, row.cosine, bias, layer);
  }
  return perf::FlushOutput();
}

void Report::Skipped(const std::string& why) const {
  std::fflush(stdout);
  perf::WriteTo(csv_ ? stderr : stdout, fmt::format("# skipped: {}\n", why));
}

}  // namespace inccl::tools
