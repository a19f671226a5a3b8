// SPDX-License-Identifier: Apache-2.0
//
// team_bench (docs/perf-tools.md): one rank's work in an all-reduce, two-shot, with the payloads of
// its peers at hand, on one thread and on a team; in turns, so that both see the same machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/team.h"
#include "compress/codec.h"
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

constexpr int kWrong = 1, kCommandLine = 2, kError = 3;  // exit status
constexpr size_t kSlots = 4;                             // of a lane, which are used in turns
constexpr const char* kPhases[] = {"codes", "quantize", "owner", "decode", "all"};
constexpr size_t kAll = 4;
using Times = std::array<double, 5>;  // of the phases, in milliseconds

void Require(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "team_bench: {}: {}\n", CodeName(status.code()), status.message());
  std::exit(kError);
}

// Normal, with a magnitude for each superblock, as gradients have.
std::vector<float> Elements(uint64_t count) {
  Rng rng(1);
  std::vector<float> x(count);
  float scale = 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (i % kSuperblock == 0) scale = std::ldexp(1.0f, -static_cast<int>(rng.Below(12)));
    double sum = -6;
    for (int k = 0; k < 4; ++k) sum += 3 * rng.Uniform();
    x[i] = static_cast<float>(sum) * scale;
  }
  return x;
}

// The call on rank 0. Peers have its elements, each from another place on; they are prepared in the
// first Run.
class Work {
 public:
  explicit Work(const Options& options)
      : options_(options),
        count_(options.bytes / sizeof(float) / kWindow * kWindow),
        input_(Elements(count_)),
        output_(count_) {
    if (options.codec == "none") {
      codec_ = IdentityCodec();
    } else {
      Result<std::shared_ptr<const Codec>> codec = MakeCodec(options.codec);
      Require(codec.ok() ? Status::Ok() : codec.status());
      codec_ = *codec;
    }
    state_ = codec_->NewState();
    const uint32_t superblock = codec_->MaxBytes(DataType::kFloat32, options.ranks, kSuperblock);
    slice_ = std::max(1u, options.slice_bytes / superblock) * kSuperblock;
    slot_bytes_ = codec_->MaxBytes(DataType::kFloat32, options.ranks, slice_) + 64;
    for (std::vector<std::byte>& slot : slots_) slot.resize(slot_bytes_);
    side_.resize(codec_->SideBytes(kWindow) + 64);
  }

  Times Run(Team* team) {
    Times times{};
    next_side_ = next_sum_ = next_result_ = 0;
    state_->set_team(team);
    Require(state_->Begin({.nranks = options_.ranks, .rank = 0, .count = count_}));
    const uint64_t chunk =
        kWindow / static_cast<uint64_t>(options_.ranks) / kSuperblock * kSuperblock;
    for (uint64_t window = 0; window < count_; window += kWindow) {
      const auto timed = [&](size_t phase, const auto& body) {
        const Time start = SystemClock().Now();
        body();
        times[phase] += static_cast<double>(SystemClock().Now() - start) / 1e6;
      };
      if (!prepared_) Prepare(window, chunk);
      if (!codec_->side_phases().empty()) timed(0, [&] { Agree(window); });
      timed(1, [&] {
        Slices(window + chunk, window + kWindow, [&](const Range& range) {
          Combine(range, {In(range)}, {Slot({Form::kSum, 1})});
        });
      });
      timed(2, [&] { Slices(window, window + chunk, [&](const Range& range) { Own(range); }); });
      timed(3, [&] {
        Slices(window + chunk, window + kWindow, [&](const Range& range) {
          Combine(range, {Of({Form::kResult}, &results_[next_result_++])}, {Out(range)});
        });
      });
    }
    prepared_ = true;
    state_->Finish(nullptr);
    team->Rest();
    for (size_t p = 0; p < kAll; ++p) times[kAll] += times[p];
    return times;
  }

  const std::vector<float>& output() const { return output_; }
  uint32_t slice() const { return slice_; }

 private:
  using Bytes = std::vector<std::byte>;

  Term In(const Range& range, int rank = 0) {
    const uint64_t shift = static_cast<uint64_t>(rank) * 7 * kSuperblock;
    const uint64_t first = std::min(range.first + shift, count_ - range.count);
    return {{Form::kInput},
            reinterpret_cast<std::byte*>(input_.data() + first),
            static_cast<uint32_t>(range.count * sizeof(float))};
  }
  Term Out(const Range& range) {
    return {{Form::kOutput},
            reinterpret_cast<std::byte*>(output_.data() + range.first),
            static_cast<uint32_t>(range.count * sizeof(float))};
  }
  static Term Of(const Format& format, Bytes* bytes) {
    return {format, bytes->data(), static_cast<uint32_t>(bytes->size())};
  }
  Term Slot(const Format& format) { return Of(format, &slots_[next_slot_++ % kSlots]); }

  template <typename Body>
  void Slices(uint64_t first, uint64_t end, const Body& body) {
    for (uint64_t at = first; at < end; at += slice_) {
      body(Range{0, at, static_cast<uint32_t>(std::min<uint64_t>(slice_, end - at))});
    }
  }
  void Combine(const Range& range, const std::vector<Term>& in, std::vector<Term> out) {
    Require(state_->Combine(range, in, out));
  }
  void Agree(uint64_t window) {
    const Range range{0, window, kWindow};
    std::vector<Term> in = {In(range)};
    for (int r = 1; r < options_.ranks; ++r) in.push_back(Of({Form::kSide}, &sides_[next_side_++]));
    Combine(range, in, {Of({Form::kSide}, &side_), {{Form::kSide}, nullptr, 0}});
  }
  void Own(const Range& range) {
    std::vector<Term> in = {In(range)};
    for (int r = 1; r < options_.ranks; ++r) {
      in.push_back(Of({Form::kSum, 1}, &sums_[next_sum_++]));
    }
    Combine(range, in, {Slot({Form::kResult}), Out(range)});
  }

  // What the peers send for a window.
  Bytes Make(const Range& range, const std::vector<Term>& in, const Format& format, size_t room) {
    Bytes bytes(room);
    std::vector<Term> out = {Of(format, &bytes)};
    Require(state_->Combine(range, in, out));
    bytes.resize(out[0].bytes);
    return bytes;
  }
  void Prepare(uint64_t window, uint64_t chunk) {
    const Range all{0, window, kWindow};
    if (!codec_->side_phases().empty()) {
      for (int r = 1; r < options_.ranks; ++r) {
        sides_.push_back(Make(all, {In(all, r)}, {Form::kSide}, side_.size()));
      }
      const size_t first = next_side_;
      Agree(window);
      next_side_ = first;
    }
    Slices(window, window + chunk, [&](const Range& range) {
      for (int r = 1; r < options_.ranks; ++r) {
        sums_.push_back(Make(range, {In(range, r)}, {Form::kSum, 1}, slot_bytes_));
      }
    });
    Slices(window + chunk, window + kWindow, [&](const Range& range) {
      std::vector<Term> in;
      for (int r = 0; r < options_.ranks; ++r) in.push_back(In(range, r));
      results_.push_back(Make(range, in, {Form::kResult}, slot_bytes_));
    });
  }

  const Options options_;
  const uint64_t count_;
  std::vector<float> input_, output_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
  uint32_t slice_ = 0;  // elements
  size_t slot_bytes_ = 0;
  std::array<Bytes, kSlots> slots_;
  size_t next_slot_ = 0;
  Bytes side_;
  bool prepared_ = false;
  // Of the peers, in the order in which they are needed.
  std::vector<Bytes> sides_, sums_, results_;
  size_t next_side_ = 0, next_sum_ = 0, next_result_ = 0;
};

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
    Options less = options;
    less.bytes =
        std::max<uint64_t>(4 << 20, options.bytes / static_cast<uint64_t>(options.threads));
    for (int i = 0; i < options.threads; ++i) {
      works_.push_back(std::make_unique<Work>(less));
      works_.back()->Run(Team::Alone());
    }
  }
  double Run() {
    std::vector<std::thread> threads;
    std::atomic<size_t> ready{0};
    std::atomic<bool> starts{false};
    for (const std::unique_ptr<Work>& work : works_) {
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
  std::vector<std::unique_ptr<Work>> works_;
};

int Main(const Options& options) {
  Work work(options);
  Team team(options.threads);
  work.Run(Team::Alone());  // prepares
  const std::vector<float> expected = work.output();
  work.Run(&team);
  if (work.output() != expected) {
    fmt::print(stderr, "team_bench: the team's result is not that of one thread\n");
    return kWrong;
  }
  fmt::print("{} of fp32, {} ranks, {}, slices of {} elements, {} threads, {} turns\n",
             options.bytes, options.ranks, options.codec, work.slice(), options.threads,
             options.iterations);
  std::array<std::vector<double>, 5> alone, with, ratio;
  std::vector<double> apart;
  Independent independent(options);
  for (int i = 0; i < options.iterations; ++i) {
    apart.push_back(independent.Run());
    const Times one = work.Run(Team::Alone()), many = work.Run(&team);
    for (size_t p = 0; p < one.size(); ++p) {
      alone[p].push_back(one[p]);
      with[p].push_back(many[p]);
      if (one[p] > 0) ratio[p].push_back(many[p] / one[p]);
    }
  }
  fmt::print("{:<10} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "phase", "1 (ms)", "team (ms)", "ratio",
             "least ratio", "of the best");
  for (size_t p = 0; p < alone.size(); ++p) {
    if (ratio[p].empty()) continue;
    const auto least = [](const std::vector<double>& v) {
      return *std::min_element(v.begin(), v.end());
    };
    fmt::print("{:<10} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f}\n", kPhases[p],
               Median(alone[p]), Median(with[p]), Median(ratio[p]), least(ratio[p]),
               least(with[p]) / least(alone[p]));
  }
  std::vector<double> limit;
  for (size_t i = 0; i < apart.size(); ++i) limit.push_back(apart[i] / alone[kAll][i]);
  fmt::print("{:<10} {:>12} {:>12.2f} {:>12.2f} {:>12.2f} {:>12.2f}\n", "apart", "", Median(apart),
             Median(limit), *std::min_element(limit.begin(), limit.end()),
             *std::min_element(apart.begin(), apart.end()) /
                 *std::min_element(alone[kAll].begin(), alone[kAll].end()));
  fmt::print("fork and join: {:.2f} us\n", ForkJoin(&team));
  return 0;
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  inccl::perf::Options options;
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
    return app.exit(error) == 0 ? 0 : inccl::perf::kCommandLine;
  }
  return inccl::perf::Main(options);
}
