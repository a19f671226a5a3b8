// SPDX-License-Identifier: Apache-2.0
//
// codec_bench (docs/scripts.md): every kernel of src/compress/kernels on every instruction set of
// this processor, beside memcpy and the sum of fp32, with Google Benchmark. --instructions: how
// many instructions each takes per element, and whether that is within its goal; --goals: only
// kernels with a goal. --reducers[=ELEMENTS]: selections and calls of reducers.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/simd.h"
#include "perf/kernels/kernel_cases.h"
#include "perf/kernels/reducer_cases.h"
#include "perf/support/instruction_count.h"
#include "perf/support/output.h"

namespace inccl::perf {
namespace {

// Counts are exact, and the goals are those of GCC 12, Debian 12's compiler; others take others.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 12
constexpr double kGoalSlack = 1.02;
#else
constexpr double kGoalSlack = 1.2;
#endif
constexpr int kRan = 0, kMissed = 1, kCommandLine = 2, kError = 3, kNotMeasured = 4;  // exit status

void RunCase(benchmark::State& state, const KernelCase* kernel, const std::string& target) {
  if (Status s = SetSimdTarget(target); !s.ok()) {
    state.SkipWithError(s.message().c_str());
    return;
  }
  for (auto _ : state) {
    kernel->run(kCaseSuperblocks);
    benchmark::ClobberMemory();
  }
  const auto elements = static_cast<double>(state.iterations()) * kCaseSuperblocks * kSuperblock;
  state.SetItemsProcessed(static_cast<int64_t>(elements));
  state.SetBytesProcessed(static_cast<int64_t>(elements * kernel->bytes));
}

std::vector<std::string> TargetsOf(const KernelCase& kernel) {
  return kernel.every_target ? SimdTargets() : std::vector<std::string>{"best"};
}

void Register(const KernelCases& cases) {
  for (const KernelCase& kernel : cases.all()) {
    for (const std::string& target : TargetsOf(kernel)) {
      const std::string name =
          kernel.every_target ? fmt::format("{}/{}", kernel.name, target) : kernel.name;
      benchmark::RegisterBenchmark(
          name.c_str(),
          [kernel = &kernel, target](benchmark::State& state) { RunCase(state, kernel, target); });
    }
  }
}

// Per element: what twice as many superblocks take more.
Result<double> InstructionsOf(const KernelCase& kernel, const std::string& target) {
  if (Status s = SetSimdTarget(target); !s.ok()) return s;
  double counts[2] = {};
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t superblocks = kernel.counted * (i + 1);
    kernel.run(superblocks);  // what is done once, such as choosing a target
    Result<uint64_t> count = CountInstructions([&] { kernel.run(superblocks); });
    if (!count.ok()) return count.status();
    counts[i] = static_cast<double>(*count);
  }
  return (counts[1] - counts[0]) / (kernel.counted * kSuperblock);
}

std::optional<double> GoalOf(const KernelCase& kernel, std::string_view target) {
  if (!kernel.goal) return std::nullopt;
  if (target == "avx2") return kernel.goal->avx2;
  if (target == "avx512" || target == "best") return kernel.goal->avx512;
  if (target.starts_with("avx512")) return kernel.goal->vbmi;
  return std::nullopt;
}

struct Instructions {
  int measured = 0;
  int missed = 0;  // more than kGoalSlack times the goal
};

Result<Instructions> PrintInstructions(const KernelCases& cases, bool only_goals) {
  Instructions all;
  PrintOut("{:<20} {:<10} {:>12} {:>8}\n", "kernel", "target", "instructions", "goal");
  for (const KernelCase& kernel : cases.all()) {
    if (!kernel.counts_exactly) continue;
    for (const std::string& target : TargetsOf(kernel)) {
      const std::optional<double> goal = GoalOf(kernel, target);
      if (only_goals && !goal) continue;
      const Result<double> count = InstructionsOf(kernel, target);
      if (!count.ok()) return count.status();
      const bool miss = goal && *count > kGoalSlack * *goal;
      ++all.measured;
      all.missed += miss ? 1 : 0;
      PrintOut("{:<20} {:<10} {:>12.3f} {:>8}{}\n", kernel.name,
               kernel.every_target ? target : "any", *count,
               goal ? fmt::format("{:.3f}", *goal) : "-", miss ? "  MISSED" : "");
      std::fflush(stdout);
    }
  }
  PrintOut("instructions per element: {} kernels, {} above {} times the goal\n", all.measured,
           all.missed, kGoalSlack);
  return all;
}

int RunInstructions(const KernelCases& cases, bool only_goals) {
  const Result<Instructions> all = PrintInstructions(cases, only_goals);
  if (!all.ok()) {
    PrintError("codec_bench: {}: {}\n", CodeName(all.status().code()), all.status().message());
    return all.status().code() == Code::kSystemError ? kNotMeasured : kError;
  }
  if (all->measured == 0) return kNotMeasured;
  return all->missed == 0 ? kRan : kMissed;
}

constexpr std::string_view kReducers = "--reducers";

// `argument`: kReducers, followed by nothing or by =ELEMENTS.
int RunReducers(std::string_view argument) {
  constexpr uint64_t kUnit = 1024;
  uint64_t count = uint64_t{16} << 20;
  const std::string_view elements =
      argument.substr(std::min<size_t>(argument.size(), kReducers.size() + 1));
  if (!elements.empty()) {
    const auto [end, error] = std::from_chars(elements.begin(), elements.end(), count);
    if (error != std::errc() || end != elements.end() || count < kUnit || count % kUnit != 0) {
      PrintError("codec_bench: {}: expected a multiple of {}\n", argument, kUnit);
      return kCommandLine;
    }
  }
  const Status status = PrintReducers(count);
  if (status.ok()) return kRan;
  PrintError("codec_bench: {}: {}\n", CodeName(status.code()), status.message());
  return kError;
}

int Main(int argc, char** argv) {
  const std::string_view first = argc == 2 ? argv[1] : "";
  if (first == kReducers || first.starts_with("--reducers=")) return RunReducers(first);
  const KernelCases cases;
  if (first == "--instructions" || first == "--goals") {
    return RunInstructions(cases, first == "--goals");
  }
  Register(cases);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return kCommandLine;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return kRan;
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); },
                                 inccl::perf::kError);
}
