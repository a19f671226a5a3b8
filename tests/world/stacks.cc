// SPDX-License-Identifier: Apache-2.0
#include "world/stacks.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace inccl::test {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string Output(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  pclose(pipe);
  return text;
}

}  // namespace

std::string StacksOf(pid_t pid) {
  std::ostringstream text;
  text << "--- threads of process " << pid << "\n";
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  DIR* const dir = opendir(tasks.c_str());
  if (dir != nullptr) {
    while (const dirent* entry = readdir(dir)) {
      if (entry->d_name[0] == '.') continue;
      const std::string task = fmt::format("{}/{}", tasks, entry->d_name);
      text << entry->d_name << " " << FirstLine(task + "/comm") << " wchan "
           << FirstLine(task + "/wchan") << " syscall " << FirstLine(task + "/syscall") << "\n";
    }
    closedir(dir);
  }
  text << Output(
      fmt::format("timeout 30 gdb -p {} -batch -ex 'thread apply all bt 16' 2>/dev/null | grep -v "
                  "'^\\[New LWP'",
                  pid));
  return text.str();
}

Watchdog::Watchdog(double seconds) {
  thread_ = std::thread([this, seconds] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_; })) {
      return;
    }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    std::fprintf(stderr, "no end after %.1f s\n%s", seconds, StacksOf(getpid()).c_str());
    std::fflush(nullptr);
    _exit(97);
  });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace inccl::test
