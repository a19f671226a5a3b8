// SPDX-License-Identifier: Apache-2.0
//
// team_bench (docs/perf-tools.md): one rank's work in an all-reduce, two-shot, with the payloads of
// its peers at hand, on one thread and on a team; in turns, so that both see the same machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/team.h"
#include "compress/codec.h"
#include "perf/kernels/rank_work.h"
#include "perf/support/output.h"
#include "perf/support/statistics.h"

namespace inccl::perf {
namespace {

struct Options {
  uint64_t bytes = 64 << 20;  // of fp32
  int threads = 2;
  int ranks = 4;
  uint32_t slice_bytes = 128 * 1024;  // of a slot
  int iterations = 15;
  std::string codec = "hbi:bits=6";
};

constexpr int kWrong = 1, kCommandLine = 2;  // exit status
RankWork::Options WorkOf(const Options& options, uint64_t bytes) {
  return {.elements = bytes / sizeof(float) / kWindow * kWindow,
          .ranks = options.ranks,
          .slice_bytes = options.slice_bytes,
          .codec = options.codec};
}

// Microseconds of a step in which every thread has a part and the parts do nothing but meet, while
// the helpers spin.
double ForkJoin(Team* team) {
  constexpr int kSteps = 2000;
  const auto parts = static_cast<uint32_t>(team->threads());
  std::vector<double> times;
  for (int i = 0; i < kSteps; ++i) {
    std::atomic<uint32_t> begun{0};
    const Time start = SystemClock().Now();
    team->Run(parts, [&](uint32_t) noexcept {
      begun.fetch_add(1);
      while (begun.load() != parts) {
      }
    });
    times.push_back(static_cast<double>(SystemClock().Now() - start) / 1e3);
  }
  team->Rest();
  return Median(times);
}

// Milliseconds of the work on as many threads, each with a call of its own of as much less: what
// the machine's memory and processors allow, without a team.
class Independent {
 public:
  explicit Independent(const Options& options) {
    const uint64_t bytes =
        std::max<uint64_t>(4 << 20, options.bytes / static_cast<uint64_t>(options.threads));
    for (int i = 0; i < options.threads; ++i) {
      works_.push_back(std::make_unique<RankWork>(WorkOf(options, bytes)));
      works_.back()->Run(Team::Alone());
    }
  }
  double Run() {
    std::vector<std::thread> threads;
    std::atomic<size_t> ready{0};
    std::atomic<bool> starts{false};
    for (const std::unique_ptr<RankWork>& work : works_) {
      threads.emplace_back([&] {
        ready.fetch_add(1);
        while (!starts.load()) {
        }
        work->Run(Team::Alone());
      });
    }
    while (ready.load() != works_.size()) std::this_thread::yield();
    const Time start = SystemClock().Now();
    starts.store(true);
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(SystemClock().Now() - start) / 1e6;
  }

 private:
  std::vector<std::unique_ptr<RankWork>> works_;
};

int Measure(const Options& options) {
  RankWork work(WorkOf(options, options.bytes));
  Team team(options.threads);
  work.Run(Team::Alone());  // prepares
  const std::vector<std::byte> expected(work.output().begin(), work.output().end());
  work.Run(&team);
  if (!std::equal(expected.begin(), expected.end(), work.output().begin())) {
    PrintError("team_bench: the team's result is not that of one thread\n");
    return kWrong;
  }
  PrintOut("{} of fp32, {} ranks, {}, slices of {} elements, {} threads, {} turns\n", options.bytes,
           options.ranks, options.codec, work.slice(), options.threads, options.iterations);
  std::array<std::vector<double>, 5> alone, with, ratio;
  std::vector<double> apart;
  Independent independent(options);
  for (int i = 0; i < options.iterations; ++i) {
    apart.push_back(independent.Run());
    const RankWork::Times one = work.Run(Team::Alone()), many = work.Run(&team);
    for (size_t p = 0; p < one.size(); ++p) {
      alone[p].push_back(one[p]);
      with[p].push_back(many[p]);
      if (one[p] > 0) ratio[p].push_back(many[p] / one[p]);
    }
  }
  PrintOut("{:<10} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "phase", "1 (ms)", "team (ms)", "ratio",
           "least ratio", "of the best");
  for (size_t p = 0; p < alone.size(); ++p) {
    if (ratio[p].empty()) continue;
    const auto least = [](const std::vector<double>& v) {
      return *std::min_element(v.begin(), v.end());
    };
    PrintOut("{:<10} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f}\n", RankWork::kPhases[p],
             Median(alone[p]), Median(with[p]), Median(ratio[p]), least(ratio[p]),
             least(with[p]) / least(alone[p]));
  }
  std::vector<double> limit;
  for (size_t i = 0; i < apart.size(); ++i) limit.push_back(apart[i] / alone[RankWork::kAll][i]);
  PrintOut("{:<10} {:>12} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f}\n", "apart", "", Median(apart),
           Median(limit), *std::min_element(limit.begin(), limit.end()),
           *std::min_element(apart.begin(), apart.end()) /
               *std::min_element(alone[RankWork::kAll].begin(), alone[RankWork::kAll].end()));
  PrintOut("fork and join: {:.2f} us\n", ForkJoin(&team));
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"One rank's work in an all-reduce, on one thread and on a team", "team_bench"};
  app.add_option("--bytes", options.bytes, "bytes of fp32; whole windows of 4 MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t{4} << 20, uint64_t{4} << 30));
  app.add_option("--threads", options.threads, "of the team")->check(CLI::Range(1, 64));
  app.add_option("--ranks", options.ranks, "whose payloads there are")->check(CLI::Range(2, 64));
  app.add_option("--slice-bytes", options.slice_bytes, "of a slot, as INCCL_SLICE_BYTES")
      ->check(CLI::Range(4096, 4 << 20));
  app.add_option("--iterations", options.iterations, "turns")->check(CLI::Range(1, 10000));
  app.add_option("--codec", options.codec, "its specification, or none");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kCommandLine;
  }
  return Measure(options);
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); },
                                 inccl::perf::kWrong);
}
