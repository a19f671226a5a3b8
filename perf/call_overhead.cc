// SPDX-License-Identifier: Apache-2.0
//
// What a communicator and a call cost beside moving bytes: creation, memory, the first call against
// the second, and the time of a call's checks, tuner and schedule. docs/scripts.md is the
// manual.
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fd.h"
#include "perf/overhead/measure.h"
#include "perf/support/fork_world.h"
#include "perf/support/host.h"
#include "perf/support/layout.h"
#include "perf/support/output.h"
#include "perf/support/record.h"

namespace inccl::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostInitUs = 100e3, kMostFirst = 3, kMostEmptyNs = 150;
constexpr uint64_t kMostBytes = 32u << 20;  // of a rank

struct Options {
  int ranks = 8, rounds = 5;
  std::vector<std::string> sizes = {"4K", "1M"}, checks;
  std::string json;
  OverheadOptions measure;
};

// Rank 0 is another process and hands its text back through memory that both have.
constexpr size_t kMailBytes = 64 * 1024;

Json ToJson(const Overhead& o) {
  Json first = Json::array(), empty = Json::array();
  for (const FirstCalls& f : o.first) {
    first.push_back({{"call", f.name},
                     {"bytes", f.bytes},
                     {"first_us", f.first_us},
                     {"second_us", f.second_us}});
  }
  for (const EmptyCall& e : o.empty) empty.push_back({{"call", e.name}, {"ns", e.nanoseconds}});
  return {{"init_us", o.init_us},
          {"created_bytes", o.created_bytes},
          {"created_most", o.created_most},
          {"used_bytes", o.used_bytes},
          {"used_most", o.used_most},
          {"first", first},
          {"empty", empty}};
}

Overhead FromJson(const Json& json) {
  Overhead o;
  o.init_us = json["init_us"];
  o.created_bytes = json["created_bytes"];
  o.created_most = json["created_most"];
  o.used_bytes = json["used_bytes"];
  o.used_most = json["used_most"];
  for (const Json& f : json["first"]) {
    o.first.push_back({f["call"], f["bytes"], f["first_us"], f["second_us"]});
  }
  for (const Json& e : json["empty"]) o.empty.push_back({e["call"], e["ns"]});
  return o;
}

// One round in fresh processes.
int RunRound(const Options& options, std::vector<Overhead>* runs) {
  void* memory =
      mmap(nullptr, kMailBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kExitFailed;
  const Mapping mapping(memory, kMailBytes);
  auto* const mail = static_cast<char*>(memory);
  const int code = RunForked("call_overhead", options.ranks, [&](World& world) -> int {
    Result<Overhead> overhead = MeasureOverhead(world, options.measure);
    if (!overhead.ok()) {
      PrintError("call_overhead: rank {}: {}\n", world.rank(), overhead.status().message());
      return kExitFailed;
    }
    if (world.rank() != 0) return kExitOk;
    const std::string text = ToJson(*overhead).dump();
    if (text.size() >= kMailBytes) return kExitFailed;
    std::copy(text.begin(), text.end(), mail);
    return kExitOk;
  });
  if (code == kExitOk) runs->push_back(FromJson(Json::parse(mail)));
  return code;
}

struct Line {
  std::string what, kind;
  double value = 0, limit = 0;
  const char* unit = "";
};

std::vector<Line> LinesOf(const Overhead& o) {
  constexpr double kMega = 1 << 20;
  const auto mega = [](uint64_t bytes) { return static_cast<double>(bytes) / kMega; };
  std::vector<Line> lines = {
      {"creation of the communicator", "init", o.init_us / 1000, kMostInitUs / 1000, "ms"},
      {"memory of it, all ranks", "", mega(o.created_bytes), 0, "MiB"},
      {"memory of it, the rank with most", "memory", mega(o.created_most), mega(kMostBytes), "MiB"},
      {"memory after the calls, all ranks", "", mega(o.used_bytes), 0, "MiB"},
      {"memory after the calls, the rank with most", "memory", mega(o.used_most), mega(kMostBytes),
       "MiB"}};
  for (const FirstCalls& f : o.first) {
    const std::string call = fmt::format("{} of {} B", f.name, f.bytes);
    lines.push_back({"first " + call, "", f.first_us, 0, "us"});
    lines.push_back({"second " + call, "", f.second_us, 0, "us"});
    lines.push_back({"first / second " + call, "first",
                     f.second_us > 0 ? f.first_us / f.second_us : 0, kMostFirst, ""});
  }
  for (const EmptyCall& e : o.empty) {
    const bool plain = e.name == "allreduce";
    lines.push_back({fmt::format("call of no elements: {}", e.name), plain ? "call" : "",
                     e.nanoseconds, plain ? kMostEmptyNs : 0, "ns"});
  }
  return lines;
}

// Prints the table; true if everything that shall be checked is within its limit.
bool Report(const Options& options, const Overhead& overhead) {
  const Host host = ThisHost();
  PrintOut("# {} on {} cores, {} ranks, medians of {} rounds in fresh processes\n", host.cpu,
           host.cores, options.ranks, options.rounds);
  bool right = true;
  for (const Line& line : LinesOf(overhead)) {
    const bool checked =
        std::find(options.checks.begin(), options.checks.end(), line.kind) != options.checks.end();
    const bool failed = line.limit > 0 && line.value > line.limit;
    right = right && !(checked && failed);
    PrintOut("{:<46} {:>10.2f} {:<4}{}\n", line.what, line.value, line.unit,
             line.limit > 0 ? fmt::format("  goal {:g}{}", line.limit, failed ? ": above" : "")
                            : std::string());
  }
  return right;
}

Status WriteJson(const Options& options, const Overhead& overhead) {
  const Host host = ThisHost();
  const Json document = {{"header",
                          {{"program", "call_overhead"},
                           {"cpu", host.cpu},
                           {"cores", host.cores},
                           {"date", host.date},
                           {"nranks", options.ranks},
                           {"rounds", options.rounds}}},
                         {"overhead", ToJson(overhead)}};
  return WriteDocument(options.json, document);
}

int OverheadMain(const Options& options) {
  std::vector<Overhead> runs;
  for (int round = 0; round < options.rounds; ++round) {
    if (const int code = RunRound(options, &runs); code != kExitOk) return code;
  }
  const Overhead overhead = MedianOf(runs);
  const bool right = Report(options, overhead);
  if (!options.json.empty()) {
    if (Status s = WriteJson(options, overhead); !s.ok()) {
      PrintError("call_overhead: {}\n", s.message());
      return kExitFailed;
    }
  }
  return right ? kExitOk : kExitWrong;
}

int Main(int argc, char** argv) {
  Options options;
  options.measure.codecs = {"none", "hbi:bits=6"};
  CLI::App app("What a communicator and a call cost. Manual: docs/scripts.md");
  app.add_option("--ranks", options.ranks, "processes")->check(CLI::Range(2, 64));
  app.add_option("--rounds", options.rounds, "repetitions")->check(CLI::Range(1, 1000));
  app.add_option("--bytes", options.sizes, "of the first and second calls")->delimiter(',');
  app.add_option("--codec", options.measure.codecs, "\"none\" or a codec; repeatable");
  app.add_option("--calls", options.measure.calls, "calls of no elements between time points")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--check", options.checks, "exit status 1 above the goal")
      ->delimiter(',')
      ->check(CLI::IsMember({"init", "memory", "first", "call"}));
  app.add_option("--json", options.json, "file for the numbers");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  for (const std::string& text : options.sizes) {
    const Result<uint64_t> size = ParseSize(text);
    if (!size.ok() || *size < sizeof(float)) {
      PrintError("call_overhead: --bytes {}: {}\n", text,
                 size.ok() ? "less than an element" : size.status().message());
      return kExitUsage;
    }
    options.measure.sizes.push_back(*size);
  }
  return OverheadMain(options);
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
