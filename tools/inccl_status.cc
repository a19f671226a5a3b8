// SPDX-License-Identifier: Apache-2.0
//
// inccl-status: what the communicators of this user's processes on this host do
// (docs/tools.md). Exit status: 0; 1 if there is no communicator; 2 command line; 3 if
// the output cannot be written.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "control/status_socket.h"
#include "inccl/ccl.h"
#include "perf/support/output.h"
#include "tools/status/report.h"

namespace inccl::tools {
namespace {

constexpr int kNothingFound = 1;
constexpr int kBadCommandLine = 2;
constexpr Time kLocalLimit = 2 * kSecond, kAllLimit = 4 * kSecond;

struct Options {
  std::vector<std::string> directories;
  int late_ms = 500;
  bool connections = false;
  bool json = false;
};

std::vector<std::string> Directories(const Options& options) {
  if (!options.directories.empty()) return options.directories;
  // Ranks and this program may have been started with different environments.
  const std::set<std::string> all = {
      StatusDirectory(secure_getenv("XDG_RUNTIME_DIR")),
      StatusDirectory(fmt::format("/run/user/{}", geteuid()).c_str()), StatusDirectory(nullptr)};
  return {all.begin(), all.end()};
}

// A null answer: the process does not answer, or what it says is no JSON.
Json Ask(const std::string& path, const char* request, Time limit) {
  const Result<std::string> answer = AskForStatus(path, request, limit);
  if (answer.ok()) {
    Json json = Json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    if (!json.is_discarded()) return json;
  }
  // Its name is the number of the process and a random one.
  const std::string name = path.substr(path.rfind('/') + 1);
  perf::PrintError("inccl-status: process {} does not answer{}\n",
                   Escaped(name.substr(0, name.find('-'))),
                   answer.ok() ? "" : ": " + Escaped(answer.status().message()));
  return nullptr;
}

// Each process says what it does itself; of each communicator one process asks the ranks of other
// hosts.
std::vector<Json> AskAll(const Options& options) {
  std::vector<Json> answers;
  std::set<std::string> asked;
  for (const std::string& directory : Directories(options)) {
    for (const std::string& path : FindStatusSockets(directory)) {
      Json answer = Ask(path, "local", kLocalLimit);
      if (answer.is_null()) continue;
      bool is_new = false;
      for (const Json& communicator : answer["communicators"]) {
        is_new = asked.insert(communicator["id"]).second || is_new;
      }
      if (is_new) {
        if (Json all = Ask(path, "all", kAllLimit); !all.is_null()) answer = std::move(all);
      }
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app(
      "What the communicators of this user's processes on this host do, and which rank they wait "
      "for. Manual: docs/tools.md");
  app.set_version_flag("--version", fmt::format("inccl {}.{}.{}", CCL_MAJOR, CCL_MINOR, CCL_PATCH));
  app.add_flag("--json", options.json, "JSON instead of text");
  app.add_flag("--connections", options.connections, "what the kernel counts on each connection");
  app.add_option("--late-ms", options.late_ms, "ranks without progress for this long wait (500)")
      ->check(CLI::Range(1, 86400000));
  app.add_option("--directory", options.directories,
                 "where processes listen (found by XDG_RUNTIME_DIR, else /tmp/inccl-UID)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadCommandLine;
  }
  const std::vector<Json> answers = AskAll(options);
  const Json communicators = JoinAnswers(answers, options.late_ms);
  if (options.json) {
    perf::PrintOut("{}\n", communicators.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (communicators.empty()) {
    perf::PrintError("inccl-status: no communicator of this user on this host\n");
  } else {
    perf::PrintOut("{}", StatusText(communicators, options.connections));
  }
  return communicators.empty() ? kNothingFound : 0;
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::tools::Run(argc, argv); });
}
