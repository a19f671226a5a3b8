// SPDX-License-Identifier: Apache-2.0
#include "perf/kernels/cold_cases.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compress/simd.h"
#include "perf/kernels/kernel_cases.h"
#include "perf/kernels/rank_work.h"
#include "perf/support/output.h"
#include "perf/support/statistics.h"

namespace inccl::perf {
namespace {

constexpr int kTurns = 9;
constexpr uint64_t kWarmElements = 1 << 16;  // of a rank's work: input and output in half a MB
constexpr size_t kOtherBytes = 128 << 20;    // larger than all caches

// Kernels that handle memory of their own at each superblock, and are called in a collective.
constexpr std::string_view kKernels[] = {"memcpy_fp32",       "add_fp32",          "add_bf16",
                                         "add_fp16",          "side_words",        "encode",
                                         "encode_odd",        "add_encode",        "add_packed",
                                         "unpack_decode",     "unpack_decode_odd", "slice_words",
                                         "slice_words_bf16",  "slice_words_fp16",  "slice_encode",
                                         "slice_encode_bf16", "slice_encode_fp16", "fold_result",
                                         "fold_result_bf16",  "fold_result_fp16",  "slice_decode",
                                         "slice_decode_bf16", "slice_decode_fp16"};

double Timed(const auto& body) {  // nanoseconds
  const Time start = SystemClock().Now();
  body();
  return static_cast<double>(SystemClock().Now() - start);
}

struct Kernel {
  std::string target;
  const KernelCase *warm, *cold;
  std::vector<double> warm_times, cold_times;
};

const KernelCase* Find(const KernelCases& cases, std::string_view name) {
  for (const KernelCase& kernel : cases.all()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Status PrintKernels(uint64_t count) {
  const auto superblocks = static_cast<uint32_t>(count / kSuperblock);
  const KernelCases small, large(superblocks);
  std::vector<std::string> targets = SimdTargets();
  std::erase_if(targets, [](const std::string& target) {
    return target != "avx2" && !target.starts_with("avx512");
  });
  if (targets.empty()) targets = {"best"};
  std::vector<Kernel> kernels;
  for (const std::string_view name : kKernels) {
    const KernelCase *warm = Find(small, name), *cold = Find(large, name);
    if (warm == nullptr || cold == nullptr) continue;
    for (const std::string& target : targets) {
      kernels.push_back({warm->every_target ? target : "any", warm, cold, {}, {}});
      if (!warm->every_target) break;
    }
  }
  const uint32_t repeats = 64;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Kernel& kernel : kernels) {
      if (kernel.target != "any") {
        if (Status s = SetSimdTarget(kernel.target); !s.ok()) return s;
      }
      kernel.warm->run(kCaseSuperblocks);
      kernel.warm_times.push_back(Timed([&] {
                                    for (uint32_t i = 0; i < repeats; ++i) {
                                      kernel.warm->run(kCaseSuperblocks);
                                    }
                                  }) /
                                  (repeats * kCaseSuperblocks * kSuperblock));
      kernel.cold_times.push_back(Timed([&] { kernel.cold->run(superblocks); }) /
                                  static_cast<double>(count));
    }
  }
  if (Status s = SetSimdTarget("best"); !s.ok()) return s;
  PrintOut("{:<20} {:<10} {:>10} {:>10} {:>10}\n", "kernel", "target", "warm", "cold", "cold GB/s");
  for (const Kernel& kernel : kernels) {
    const double cold = Median(kernel.cold_times);
    PrintOut("{:<20} {:<10} {:>10.3f} {:>10.3f} {:>10.1f}\n", kernel.warm->name, kernel.target,
             Median(kernel.warm_times), cold, kernel.cold->bytes / cold);
  }
  return Status::Ok();
}

struct Work {
  const char* name;
  RankWork::Options options;
};

void PrintPhases(uint64_t count) {
  const Work works[] = {
      {"none fp32", {.codec = "none"}},
      {"hbi fp32", {}},
      {"hbi bf16", {.type = DataType::kBfloat16}},
      {"hbi fp16", {.type = DataType::kFloat16}},
      {"hbi fp32, n = 2", {.ranks = 2}},
      {"lossless bf16", {.type = DataType::kBfloat16, .codec = "lossless"}},
  };
  PrintOut("\n{:<20} {:>13}", "a rank's work", "");
  for (const char* phase : RankWork::kPhases) PrintOut(" {:>15}", phase);
  PrintOut("\n");
  for (const Work& work : works) {
    RankWork::Options warm = work.options, cold = work.options;
    warm.elements = kWarmElements;
    warm.slice_bytes = 16 * 1024;
    cold.elements = count;
    cold.non_temporal = true;
    RankWork small(warm), large(cold);
    small.Run(Team::Alone());
    large.Run(Team::Alone());
    std::array<std::vector<double>, 5> times[2];
    const auto add = [](const RankWork::Times& all, double scale, auto* to) {
      for (size_t p = 0; p < all.size(); ++p) (*to)[p].push_back(all[p] * scale);
    };
    for (int turn = 0; turn < kTurns; ++turn) {
      RankWork::Times sum{};
      const uint64_t repeats = count / kWarmElements / 4 + 1;
      for (uint64_t i = 0; i < repeats; ++i) {
        const RankWork::Times one = small.Run(Team::Alone());
        for (size_t p = 0; p < one.size(); ++p) sum[p] += one[p];
      }
      add(sum, 1e6 / static_cast<double>(repeats * kWarmElements), &times[0]);
      add(large.Run(Team::Alone()), 1e6 / static_cast<double>(count), &times[1]);
    }
    for (size_t t = 0; t < 2; ++t) {
      PrintOut("{:<20} {:>13}", t == 0 ? work.name : "", t == 0 ? "warm" : "cold");
      for (const std::vector<double>& phase : times[t]) PrintOut(" {:>15.3f}", Median(phase));
      PrintOut("\n");
    }
  }
}

// A call reads its input twice, window by window: for the side words, then to quantize it. The
// second read is cheap while the window still lies in a cache.
void PrintWindows(uint64_t count) {
  std::vector<uint64_t> other(kOtherBytes / sizeof(uint64_t));
  const auto evict = [&] {
    for (size_t i = 0; i < other.size(); i += 64 / sizeof(uint64_t)) ++other[i];
  };
  const KernelCases cases(static_cast<uint32_t>(count / kSuperblock));
  const KernelCase &words = *Find(cases, "slice_words"), &encode = *Find(cases, "slice_encode");
  PrintOut("\n{:<20} {:>15} {:>15} {:>15}\n", "window, elements", "side words", "then quantize",
           "quantize, cold");
  for (uint64_t window = kCaseSuperblocks * kSuperblock; window <= count; window *= 4) {
    const auto superblocks = static_cast<uint32_t>(window / kSuperblock);
    std::vector<double> times[3];
    for (int turn = 0; turn < kTurns; ++turn) {
      evict();
      times[0].push_back(Timed([&] { words.run(superblocks); }));
      times[1].push_back(Timed([&] { encode.run(superblocks); }));
      evict();
      times[2].push_back(Timed([&] { encode.run(superblocks); }));
    }
    PrintOut("{:<20}", window);
    for (std::vector<double>& of_one : times) {
      PrintOut(" {:>15.3f}", Median(of_one) / static_cast<double>(window));
    }
    PrintOut("\n");
  }
}

}  // namespace

Status PrintCold(uint64_t count) {
  PrintOut("nanoseconds per element, medians of {} turns; cold: {} elements\n", kTurns, count);
  if (Status s = PrintKernels(count); !s.ok()) return s;
  PrintPhases(count);
  PrintWindows(count);
  return Status::Ok();
}

}  // namespace inccl::perf
