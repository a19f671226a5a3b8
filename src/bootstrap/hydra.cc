// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/hydra.h"

#include <fmt/format.h>
#include <unistd.h>

#include <sstream>

#include "base/text_file.h"

namespace inccl::bootstrap {
namespace {

constexpr int kMostAncestors = 100;
constexpr size_t kMostBytes = 4096;  // limit for a stat file
constexpr const char* kProxyName = "hydra_pmi_proxy";

struct Process {
  std::string name;
  long parent = 0;
  std::string started;
};

// Parses /proc/PID/stat: "PID (NAME) STATE PARENT ...", where NAME may contain any character.
// Returns false if the file cannot be read.
bool ReadProcess(long pid, Process* process) {
  int error = 0;
  const Result<std::string> text =
      ReadTextFile("process", fmt::format("/proc/{}/stat", pid), kMostBytes, &error);
  if (!text.ok()) return false;
  const size_t open = text->find('('), close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  process->name = text->substr(open + 1, close - open - 1);
  std::istringstream fields(text->substr(close + 1));
  std::string skipped;
  if (!(fields >> skipped >> process->parent)) return false;
  constexpr int kBetween = 17;  // fields between the parent's id and the start time
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  return static_cast<bool>(fields >> process->started);
}

}  // namespace

std::string HydraProxy() {
  long pid = getppid();
  for (int i = 0; i < kMostAncestors && pid > 0; ++i) {
    Process process;
    if (!ReadProcess(pid, &process)) return "";
    if (process.name == kProxyName) return fmt::format("{} started {}", pid, process.started);
    pid = process.parent;
  }
  return "";
}

}  // namespace inccl::bootstrap
