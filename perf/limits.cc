// SPDX-License-Identifier: Apache-2.0
//
// The streaming limit of a host: 1, 2, ... N processes start together, each copies its input to its
// result once (memcpy of --bytes). No collective that reads every input and writes every result can
// be faster. Prints, for each number of processes, the median time from the first start to the last
// end, the rate of one process and of all together (bytes copied; the memory moves twice as many).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "perf/support/fork_world.h"
#include "perf/support/host.h"
#include "perf/support/layout.h"
#include "perf/support/output.h"
#include "perf/support/record.h"
#include "perf/support/statistics.h"
#include "perf/support/streaming.h"

namespace inccl::perf {
namespace {

struct LimitOptions {
  std::string bytes = "64M", json;
  uint64_t size = 0;
  uint64_t iterations = 10;
  int max_processes = 8;
};

// One copy. The input changes, so that no copy is the same work.
Interval TimeCopy(uint64_t iteration, std::vector<char>* from, std::vector<char>* to) {
  (*from)[iteration % from->size()] = static_cast<char>(iteration + 1);
  const double start = SharedMicroseconds();
  StreamOnce(std::as_bytes(std::span(*from)), std::as_writable_bytes(std::span(*to)));
  return {start, SharedMicroseconds()};
}

// From the first process's start to the last one's end, median of the iterations.
Result<double> MeasureRank(World& world, const LimitOptions& options) {
  std::vector<char> from(options.size, 1), to(options.size, 2);
  std::vector<double> times;
  for (uint64_t i = 0; i < options.iterations + 1; ++i) {
    if (Status s = world.Barrier(); !s.ok()) return s;
    const Interval mine = TimeCopy(i, &from, &to);
    if (to != from) return InternalError("memcpy copied wrong bytes");
    Result<std::vector<Interval>> all = Gather(world, mine);
    if (!all.ok()) return all.status();
    if (i > 0) times.push_back(SpanOf(*all));
  }
  return Median(std::move(times));
}

std::string FormatLine(int processes, uint64_t bytes, double time_us) {
  const double each = AlgorithmBandwidth(bytes, time_us);
  return fmt::format("{:>10}  {:>12}  {:10.1f}  {:10.2f}  {:10.2f}\n", processes, bytes, time_us,
                     each, each * processes);
}

// Rank 0 hands its number back through a file descriptor of the parent.
int RunOne(int processes, const LimitOptions& options, int result_fd) {
  return RunForked("limits", processes, [&](World& world) -> int {
    Result<double> time = MeasureRank(world, options);
    if (!time.ok()) {
      PrintError("inccl-limits: rank {}: {}\n", world.rank(), time.status().message());
      return kExitFailed;
    }
    if (world.rank() != 0) return kExitOk;
    return write(result_fd, &*time, sizeof(double)) == sizeof(double) ? kExitOk : kExitFailed;
  });
}

Status WriteLimits(const std::string& path, const nlohmann::ordered_json& rows) {
  const Host host = ThisHost();
  const nlohmann::ordered_json document = {
      {"header",
       {{"program", "limits"}, {"cpu", host.cpu}, {"cores", host.cores}, {"date", host.date}}},
      {"rows", rows}};
  return WriteDocument(path, document);
}

int Fail(const Status& status) {
  PrintError("inccl-limits: {}\n", status.message());
  return kExitFailed;
}

int LimitsMain(LimitOptions options) {
  const Host host = ThisHost();
  PrintOut("# {} on {} cores, memcpy of {} B by every process at once, median of {}\n", host.cpu,
           host.cores, options.size, options.iterations);
  PrintOut("#{:>9}  {:>12}  {:>10}  {:>10}  {:>10}\n", "processes", "bytes", "time", "each", "all");
  PrintOut("#{:>9}  {:>12}  {:>10}  {:>10}  {:>10}\n", "", "(B)", "(us)", "(GB/s)", "(GB/s)");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (int processes = 1; processes <= options.max_processes; ++processes) {
    int ends[2];
    if (pipe(ends) != 0) return kExitFailed;
    const int code = RunOne(processes, options, ends[1]);
    close(ends[1]);
    double time_us = 0;
    const bool complete = read(ends[0], &time_us, sizeof time_us) == sizeof time_us;
    close(ends[0]);
    if (code != kExitOk || !complete) return kExitFailed;
    PrintOut("{}", FormatLine(processes, options.size, time_us));
    if (Status s = FlushOutput(); !s.ok()) return Fail(s);
    const double each = AlgorithmBandwidth(options.size, time_us);
    rows.push_back({{"processes", processes},
                    {"bytes", options.size},
                    {"time_us", time_us},
                    {"each_gbs", each},
                    {"all_gbs", each * processes}});
  }
  if (options.json.empty()) return kExitOk;
  const Status written = WriteLimits(options.json, rows);
  return written.ok() ? int{kExitOk} : Fail(written);
}

int Main(int argc, char** argv) {
  LimitOptions options;
  CLI::App app("Streaming limit of this host for 1..N processes. Manual: docs/tools.md");
  app.add_option("--bytes", options.bytes, "bytes that every process copies");
  app.add_option("-n,--iters", options.iterations, "timed copies")->check(CLI::Range(1, 1000000));
  app.add_option("--max-processes", options.max_processes, "up to so many")
      ->check(CLI::Range(1, 64));
  app.add_option("--json", options.json, "file for one record per row");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const Result<uint64_t> size = ParseSize(options.bytes);
  if (!size.ok() || *size == 0) {
    PrintError("inccl-limits: --bytes {}: {}\n", options.bytes,
               size.ok() ? "nothing to copy" : size.status().message());
    return kExitUsage;
  }
  options.size = *size;
  return LimitsMain(options);
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
