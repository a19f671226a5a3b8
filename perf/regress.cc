// SPDX-License-Identifier: Apache-2.0
//
// Compares runs of the benchmarks with saved ones, by their ratio to the streaming limit.
// docs/scripts.md is the manual.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/regress/compare.h"
#include "perf/support/output.h"
#include "perf/support/world.h"

namespace inccl::perf {
namespace {

Status ReadFiles(const std::vector<std::string>& files, Ratios* ratios) {
  for (const std::string& path : files) {
    std::ifstream file(path);
    if (!file) return SystemError(path + ": cannot be read");
    const nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
    if (document.is_discarded()) return InvalidArgument(path + ": no JSON");
    if (Status s = AddRatios(document, path, ratios); !s.ok()) return s;
  }
  return Status::Ok();
}

int Fail(const std::string& text) {
  PrintError("regress: {}\n", text);
  return kExitFailed;
}

int RegressMain(const std::vector<std::string>& saved_files,
                const std::vector<std::string>& new_files, double tolerance) {
  Ratios saved, now;
  for (const Status& s : {ReadFiles(saved_files, &saved), ReadFiles(new_files, &now)}) {
    if (!s.ok()) return Fail(s.message());
  }
  const std::vector<Comparison> comparisons = Compare(saved, now, tolerance);
  PrintOut("{}", FormatComparison(comparisons, tolerance));
  bool slower = false, compared = false;
  for (const Comparison& c : comparisons) {
    slower = slower || c.verdict == Comparison::Verdict::kSlower;
    compared = compared || (c.saved > 0 && c.now > 0);
  }
  if (!compared) return Fail("the files have no case in common");
  return slower ? kExitWrong : kExitOk;
}

int Main(int argc, char** argv) {
  std::vector<std::string> saved, now;
  double percent = 20;
  CLI::App app("Compares runs of the benchmarks with saved ones. Manual: docs/scripts.md");
  app.add_option("--saved", saved, "files of the saved runs")->required();
  app.add_option("--new", now, "files of the runs to be judged")->required();
  app.add_option("--tolerance", percent, "percent by which a case may be slower")
      ->check(CLI::Range(0.0, 1000.0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return RegressMain(saved, now, percent / 100);
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
