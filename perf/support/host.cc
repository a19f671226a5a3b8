// SPDX-License-Identifier: Apache-2.0
#include "perf/support/host.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string_view>

#include "perf/support/output.h"
namespace inccl::perf {
namespace {

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name") && !line.starts_with("Model")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  return CPU_COUNT(&set);
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

}  // namespace

Host ThisHost() { return {HostName(), CpuModel(), AllowedCores(), Now()}; }

std::string CommandLine(int argc, const char* const* argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool plain = !argument.empty() &&
                       argument.find_first_of(" \t\n'\"\\$`*?[]{}()<>|&;~#!") == std::string::npos;
    if (i > 0) line += ' ';
    if (plain) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

int TerminalColumns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) != 1 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

ProgressLine::ProgressLine(bool enabled)
    : enabled_(enabled && isatty(STDERR_FILENO) == 1),
      next_(Clock::now() + std::chrono::seconds(1)) {}

bool ProgressLine::Due() const { return enabled_ && Clock::now() >= next_; }

void ProgressLine::Show(const std::string& text) {
  if (!Due()) return;
  PrintError("\r\033[K{}", text);
  std::fflush(stderr);
  visible_ = true;
  next_ = Clock::now() + std::chrono::milliseconds(200);
}

void ProgressLine::Clear() {
  if (!visible_) return;
  PrintError("\r\033[K");
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace inccl::perf
