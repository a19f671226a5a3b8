// SPDX-License-Identifier: Apache-2.0
//
// Measures on this machine which algorithm is the fastest for which call, or over a network the
// constants of the cost model, and writes the tuner's table. docs/tools.md is the manual.
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/types.h"
#include "perf/support/fork_world.h"
#include "perf/support/host.h"
#include "perf/support/layout.h"
#include "perf/support/mpi_world.h"
#include "perf/support/output.h"
#include "tools/tune/costs.h"
#include "tools/tune/measure.h"
#include "tuning/tuner.h"

namespace inccl::tools {
namespace {

struct Options {
  std::vector<int> ranks = {2, 4, 8};
  std::string min_bytes = "1K", max_bytes = "16M", output;
  uint64_t factor = 4;
  std::vector<std::string> collectives;
  bool network = false, compare = false;
  TuneOptions tune;
};

Status Check(Options* options) {
  Result<uint64_t> min = perf::ParseSize(options->min_bytes);
  Result<uint64_t> max = perf::ParseSize(options->max_bytes);
  if (!min.ok()) return InvalidArgument("--minbytes: " + min.status().message());
  if (!max.ok()) return InvalidArgument("--maxbytes: " + max.status().message());
  if (*min < sizeof(float) || *max < *min) {
    return InvalidArgument(fmt::format("--minbytes {} --maxbytes {}: not 4 or more, ascending",
                                       options->min_bytes, options->max_bytes));
  }
  Result<std::vector<uint64_t>> sizes = perf::Sweep(*min, *max, 0, options->factor);
  if (!sizes.ok()) return sizes.status();
  options->tune.sizes = *std::move(sizes);
  for (int c = 0; c < kCollectiveKinds; ++c) {
    const auto collective = static_cast<Collective>(c);
    const auto& names = options->collectives;
    if (names.empty() || std::find(names.begin(), names.end(), Name(collective)) != names.end()) {
      options->tune.collectives.push_back(collective);
    }
  }
  return Status::Ok();
}

// The lines for one number of ranks, in processes of their own.
int MeasureRanks(int ranks, const TuneOptions& options, std::string* lines) {
  constexpr size_t kMailBytes = 256 * 1024;
  void* memory =
      mmap(nullptr, kMailBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return perf::kExitFailed;
  const Mapping mapping(memory, kMailBytes);
  auto* const mail = static_cast<char*>(memory);
  const int code = perf::RunForked("inccl-tune", ranks, [&](perf::World& world) -> int {
    Result<std::vector<TunerRow>> rows = MeasureRows(world, options);
    if (!rows.ok()) {
      perf::PrintError("inccl-tune: rank {}: {}\n", world.rank(), rows.status().message());
      return perf::kExitFailed;
    }
    if (world.rank() != 0) return perf::kExitOk;
    std::string text;
    for (const TunerRow& row : *rows) text += FormatRow(row) + "\n";
    if (text.size() >= kMailBytes) return perf::kExitFailed;
    std::copy(text.begin(), text.end(), mail);
    return perf::kExitOk;
  });
  lines->append(mail);
  return code;
}

int Fail(int code, const std::string& text) {
  perf::PrintError("inccl-tune: {}\n", text);
  return code;
}

// Checks the table and writes it.
int Write(const std::string& text, const std::string& output) {
  if (Result<TunerTable> table = TunerTable::Parse(text, "table"); !table.ok()) {
    return Fail(perf::kExitFailed, table.status().message());
  }
  if (output.empty()) {
    perf::PrintOut("{}", text);
    return perf::kExitOk;
  }
  const Status written = perf::WriteFile(output, text);
  return written.ok() ? int{perf::kExitOk} : Fail(perf::kExitFailed, written.message());
}

std::string Heading(const std::string& command) {
  const perf::Host host = perf::ThisHost();
  return fmt::format("# {} on {} cores, {}\n# {}\n", host.cpu, host.cores, host.date, command);
}

// A comment per sample: the model's choice, the fastest algorithm, and the times of all.
std::string Comparison(const std::vector<TuneSamples>& measured) {
  std::string text = "# COLLECTIVE KIND BYTES: CHOICE / FASTEST; times in us\n";
  for (const TuneSamples& of_kind : measured) {
    for (const TuneSample& sample : of_kind.samples) {
      const auto least =
          std::min_element(sample.times.begin(), sample.times.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      const double chosen = sample.times.at(sample.by_default);
      text += fmt::format("# {} {} {}: {} {:.1f} / {} {:.1f} = {:.2f};", Name(of_kind.collective),
                          of_kind.compressed ? "compressed" : "plain", sample.bytes,
                          Name(sample.by_default), chosen, Name(least->first), least->second,
                          chosen / least->second);
      for (const auto& [algorithm, time] : sample.times) {
        text += fmt::format(" {} {:.1f}", Name(algorithm), time);
      }
      text += "\n";
    }
  }
  return text;
}

// On each of the ranks that mpirun has started.
int MeasureNetwork(perf::World& world, const Options& options, const std::string& command) {
  const auto fail = [&](const Status& status) {
    const bool usage = status.code() == Code::kInvalidUsage;
    if (usage && world.rank() != 0) return int{perf::kExitUsage};
    return Fail(usage ? perf::kExitUsage : perf::kExitFailed,
                fmt::format("rank {}: {}", world.rank(), status.message()));
  };
  Result<HostMap> hosts = HostsOf(world);
  if (!hosts.ok()) return fail(hosts.status());
  Result<MeasuredCosts> costs = MeasureCosts(
      world, *hosts, {.codec = options.tune.codec, .iterations = options.tune.iterations});
  if (!costs.ok()) return fail(costs.status());
  std::string text = Heading(command);
  for (const CostField& field : kCostFields) {
    const auto found = costs->find(field.name);
    if (found == costs->end()) continue;
    text += fmt::format("cost {} {} # {}\n", field.name, found->second, field.meaning);
  }
  if (options.compare) {
    Result<TunerTable> table = TunerTable::Parse(text, "table");
    if (!table.ok()) return fail(table.status());
    TuneOptions tune = options.tune;
    tune.hosts = &*hosts;
    tune.table = &*table;
    Result<std::vector<TuneSamples>> measured = MeasureSamples(world, tune);
    if (!measured.ok()) return fail(measured.status());
    text += Comparison(*measured);
  }
  return world.rank() == 0 ? Write(text, options.output) : int{perf::kExitOk};
}

int NetworkMain(Options options, int argc, char** argv) {
  if (Status s = Check(&options); !s.ok()) return Fail(perf::kExitUsage, s.message());
  const std::string command = perf::CommandLine(argc, argv);
  if (!perf::StartedByMpi()) {
    return Fail(perf::kExitUsage, "--network: start it under mpirun, on several hosts");
  }
  Result<const perf::MpiModule*> mpi = perf::LoadMpi();
  if (!mpi.ok()) return Fail(perf::kExitFailed, mpi.status().message());
  return (*mpi)->run("inccl-tune", &argc, &argv,
                     [&](perf::World& world) { return MeasureNetwork(world, options, command); });
}

int TuneMain(Options options, const std::string& command) {
  if (Status s = Check(&options); !s.ok()) return Fail(perf::kExitUsage, s.message());
  std::string text = Heading(command);
  text += "# COLLECTIVE RANKS plain|compressed BYTES|max ALGORITHM\n";
  for (const int ranks : options.ranks) {
    if (const int code = MeasureRanks(ranks, options.tune, &text); code != perf::kExitOk) {
      return code;
    }
  }
  return Write(text, options.output);
}

int Main(int argc, char** argv) {
  Options options;
  options.tune.codec = "hbi:bits=6";
  CLI::App app("Measures which algorithms are the fastest here. Manual: docs/tools.md");
  app.add_option("-o,--output", options.output, "file for the table; default: standard output");
  app.add_option("--ranks", options.ranks, "numbers of processes, 2..4096, ascending")
      ->delimiter(',')
      ->check(CLI::Range(2, kMaxRanks));
  app.add_option("-b,--minbytes", options.min_bytes, "smallest size");
  app.add_option("-e,--maxbytes", options.max_bytes, "largest size");
  app.add_option("-f,--stepfactor", options.factor, "factor between sizes")
      ->check(CLI::Range(2, 1024));
  app.add_option("--collective", options.collectives, "only these")
      ->delimiter(',')
      ->check(CLI::IsMember({"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce",
                             "alltoall", "gather", "scatter"}));
  app.add_option("--codec", options.tune.codec, "of compressed calls; none: leave them out");
  app.add_option("-n,--iters", options.tune.iterations, "timed calls of each kind and size")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--margin", options.tune.margin,
                 "by how much another algorithm must be faster than the default, 0.1: 10 %")
      ->check(CLI::Range(0.0, 10.0));
  app.add_flag("--network", options.network,
               "the constants of the cost model, between the ranks that mpirun has started");
  app.add_flag(
      "--compare", options.compare,
      "with --network: times all algorithms and compares the model's choice with the best");
  app.add_flag("-v,--verbose", options.tune.verbose, "every time, on standard error");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? perf::kExitOk : perf::kExitUsage;
  }
  // A table in force and a choice of algorithms would come between.
  for (const char* name : {"INCCL_TUNER_FILE", "INCCL_ALGO"}) unsetenv(name);
  if (options.network) return NetworkMain(options, argc, argv);
  return TuneMain(options, perf::CommandLine(argc, argv));
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::tools::Main(argc, argv); });
}
