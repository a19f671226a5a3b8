// SPDX-License-Identifier: Apache-2.0
//
// inccl-doctor: whether a program that is linked against NCCL runs on inccl
// (docs/tools.md). Exit status: 0; 1 if something is to be done; 2 command line; 3 if the
// output cannot be written.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "inccl/ccl.h"
#include "perf/support/output.h"
#include "tools/doctor/checks.h"

namespace inccl::tools {
namespace {

constexpr int kSomethingToDo = 1;
constexpr int kBadCommandLine = 2;

const char* Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok  ";
    case Verdict::kNote: return "note";
    case Verdict::kFix: break;
  }
  return "FIX ";
}

int Run(int argc, char** argv) {
  std::string program, library, nccl, header;
  int pid = 0;
  CLI::App app(
      "Whether a program that is linked against NCCL runs on inccl, and what to do. Manual: "
      "docs/tools.md");
  app.set_version_flag("--version", fmt::format("inccl {}.{}.{}", CCL_MAJOR, CCL_MINOR, CCL_PATCH));
  app.add_option("program", program, "a program or library: which libnccl.so.2 it would load");
  app.add_option("--pid", pid, "a running process: which libnccl.so.2 it has loaded")
      ->check(CLI::PositiveNumber);
  app.add_option("--nccl", nccl, "another libnccl.so.2: compare the names that it exports");
  app.add_option("--header", header, "an nccl.h: compare fields and numbers (needs a C compiler)");
  app.add_option("--library", library, "inccl's libnccl.so.2 (found beside this program)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadCommandLine;
  }
  Findings findings;
  const std::string own = FindOwnLibrary(library);
  if (own.empty()) {
    findings.push_back({Verdict::kFix,
                        "inccl's libnccl.so.2 is not where this program is installed",
                        "name it by --library"});
  } else {
    findings.push_back({Verdict::kOk, "inccl's library: " + own, ""});
  }
  if (!program.empty()) CheckProgram(program, own, &findings);
  if (pid != 0) CheckProcess(pid, own, &findings);
  CheckAbi(own, nccl, header, &findings);
  CheckMachine(&findings);
  for (const Finding& finding : findings) {
    perf::PrintOut("{} {}\n", Name(finding.verdict), finding.text);
    if (!finding.remedy.empty()) perf::PrintOut("       remedy: {}\n", finding.remedy);
  }
  const bool to_do = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kFix;
  });
  return to_do ? kSomethingToDo : 0;
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::tools::Run(argc, argv); });
}
