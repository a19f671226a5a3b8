// SPDX-License-Identifier: Apache-2.0
#include "world/baseline.h"

#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "world/clock.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

std::set<std::string> Entries(const char* directory) {
  std::set<std::string> names;
  DIR* const dir = opendir(directory);
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) names.insert(entry->d_name);
  closedir(dir);
  return names;
}

size_t RssKib() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long total = 0, resident = 0;
  const int got = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return got == 2 ? resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024 : 0;
}

// A sanitizer's runtime may start a thread of its own with the first thread of the process.
Holdings AfterTheFirstThread() {
  if (kSanitized) {
    std::thread([] {}).join();
    usleep(20000);
  }
  return Holdings::Now();
}

}  // namespace

Holdings Holdings::Now() {
  Holdings now;
  now.fds = Entries("/proc/self/fd").size();
  now.threads = Entries("/proc/self/task").size();
  now.rss_kib = RssKib();
  // Others use the directory too.
  for (const std::string& name : Entries("/dev/shm")) {
    if (name.find("inccl") != std::string::npos || name.starts_with("ucx")) now.shm.insert(name);
  }
  return now;
}

Baseline::Baseline(size_t rss_allowance_kib)
    : rss_allowance_kib_(rss_allowance_kib), before_(AfterTheFirstThread()) {}

std::string Baseline::Compare() const {
  const Holdings now = Holdings::Now();
  std::string text;
  const auto add = [&](const char* what, size_t before, size_t after) {
    text += fmt::format("{}{} {} before, {} after", text.empty() ? "" : ", ", before, what, after);
  };
  // Fewer: what an earlier test left has ended meanwhile.
  if (now.fds > before_.fds) add("descriptors", before_.fds, now.fds);
  if (now.threads > before_.threads) add("threads", before_.threads, now.threads);
  if (rss_allowance_kib_ != kAnyRss && now.rss_kib > before_.rss_kib + rss_allowance_kib_) {
    add("KiB resident", before_.rss_kib, now.rss_kib);
  }
  for (const std::string& name : now.shm) {
    if (!before_.shm.contains(name)) text += fmt::format(" /dev/shm/{} is new", name);
  }
  return text;
}

std::string Baseline::Difference(double seconds) {
  asked_ = true;
  const double limit = Seconds() + seconds;
  std::string text = Compare();
  while (!text.empty() && Seconds() < limit) {
    usleep(2000);
    text = Compare();
  }
  return text;
}

Baseline::~Baseline() {
  if (asked_) return;
  EXPECT_EQ(Difference(10.0 * kSlowness), "");
}

}  // namespace inccl::test
