// SPDX-License-Identifier: Apache-2.0
//
// What libnccl.so.2 costs: a call against the same call of libinccl's interface, and preloading it
// into a program that calls neither (docs/nccl.md, "Cost"). Times are medians of interleaved rows.
#include <dlfcn.h>
#include <fmt/format.h>
#include <inccl/ccl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "perf/support/output.h"

namespace inccl::perf {
namespace {

using AllReduce = int (*)(const void*, void*, size_t, int, int, ccl_comm_t, void*);

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns false if a call fails.
bool MeasureCalls(const std::string& library, int rows, int calls) {
  void* const shim = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto init =
      shim == nullptr
          ? nullptr
          : reinterpret_cast<int (*)(ccl_comm_t*, int, const int*)>(dlsym(shim, "ncclCommInitAll"));
  const auto reduce =
      shim == nullptr ? nullptr : reinterpret_cast<AllReduce>(dlsym(shim, "ncclAllReduce"));
  ccl_comm_t comm = nullptr;
  if (init == nullptr || reduce == nullptr || init(&comm, 1, nullptr) != CCL_SUCCESS) {
    PrintError("nccl_overhead: {} does not work\n", library);
    return false;
  }
  float value = 1;
  int failed = 0;
  std::vector<double> plain, through, difference;
  for (int row = 0; row < rows; ++row) {
    const double begin = Now();
    for (int i = 0; i < calls; ++i) {
      failed |= ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    }
    const double between = Now();
    for (int i = 0; i < calls; ++i) {
      failed |= reduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    }
    const double end = Now();
    plain.push_back((between - begin) / calls * 1e9);
    through.push_back((end - between) / calls * 1e9);
    difference.push_back(through.back() - plain.back());
  }
  (void)ccl_comm_destroy(comm);
  PrintOut(
      "a one-element all-reduce of one rank: ccl_allreduce {:.0f} ns, ncclAllReduce {:.0f} "
      "ns, difference {:.0f} ns\n",
      Median(plain), Median(through), Median(difference));
  return failed == CCL_SUCCESS;
}

// Seconds that a program takes; negative: it failed.
double Run(const std::string& preload) {
  std::string path = "/bin/true", variable = "LD_PRELOAD=" + preload;
  char* const words[] = {path.data(), nullptr};
  char* const environment[] = {preload.empty() ? nullptr : variable.data(), nullptr};
  const double begin = Now();
  pid_t child = 0;
  int status = 1;
  if (posix_spawn(&child, path.c_str(), nullptr, nullptr, words, environment) != 0 ||
      waitpid(child, &status, 0) != child || status != 0) {
    return -1;
  }
  return Now() - begin;
}

bool MeasurePreload(const std::string& library, int rows) {
  std::vector<double> plain, preloaded, difference;
  for (int row = 0; row < rows; ++row) {
    plain.push_back(Run("") * 1e6);
    preloaded.push_back(Run(library) * 1e6);
    difference.push_back(preloaded.back() - plain.back());
    if (plain.back() < 0 || preloaded.back() < 0) return false;
  }
  PrintOut("/bin/true: {:.0f} us, with the library preloaded {:.0f} us, difference {:.0f} us\n",
           Median(plain), Median(preloaded), Median(difference));
  return true;
}

int Main(int argc, char** argv) {
  int rows = 2001, calls = 50;
  std::error_code ignored;
  std::string library = (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
                         "../src/inccl-nccl/libnccl.so.2")
                            .lexically_normal()
                            .string();
  CLI::App app("What a call costs through libnccl.so.2, and what preloading it costs");
  app.add_option("--library", library, "libnccl.so.2")->capture_default_str();
  app.add_option("--rows", rows, "rows of each kind; programs are started at most 201 times")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--calls", calls, "calls of a row")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000000));
  CLI11_PARSE(app, argc, argv);
  return MeasureCalls(library, rows, calls) && MeasurePreload(library, std::min(rows, 201)) ? 0 : 1;
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
