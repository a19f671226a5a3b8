// SPDX-License-Identifier: Apache-2.0
//
// A team's steps: every part runs once, helpers really help, and everything that may go wrong with
// threads: none to be had, fork(), use from a part or from another thread, destruction.
#include "base/team.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "support/seed.h"
#include "world/limits.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace inccl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The directories below /proc/self/task of the threads that teams have started.
std::vector<std::string> Helpers() {
  std::vector<std::string> helpers;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "inccl-team") helpers.push_back(task.path());
  }
  return helpers;
}

// Waits until a condition holds that only a broken machine or library does not reach.
bool Eventually(const std::function<bool()>& holds) {
  const auto end = steady_clock::now() + std::chrono::seconds(20 * kSlowness);
  while (!holds()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// All parts of a step begin before any of them ends, so each has a thread of its own.
void MeetInAllParts(Team* team) {
  const auto parts = static_cast<uint32_t>(team->threads());
  std::atomic<uint32_t> begun{0};
  team->Run(parts, [&](uint32_t) noexcept {
    begun.fetch_add(1);
    EXPECT_TRUE(Eventually([&] { return begun.load() == parts; }));
  });
}

// The exit status of `body` in a forked child, which ends without the destructors of the process.
int InChild(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(TeamTest, EveryPartRunsOnceAndIsJoined) {
  Rng rng(TestSeed());
  for (const bool spins : {true, false}) {
    for (const int threads : {1, 2, 3, 7}) {
      Team team(threads, spins);
      std::vector<uint32_t> runs(64);  // not atomic: what parts write, the caller sees
      for (int step = 0; step < 2000 / kSlowness; ++step) {
        const auto parts = static_cast<uint32_t>(rng.Below(runs.size() + 1));
        std::fill(runs.begin(), runs.end(), 0);
        team.Run(parts, [&](uint32_t i) noexcept { runs[i] += i + 1; });
        for (uint32_t i = 0; i < runs.size(); ++i) ASSERT_EQ(runs[i], i < parts ? i + 1 : 0);
        if (rng.Below(50) == 0) team.Rest();
      }
    }
  }
}

TEST(TeamTest, HelpersHelp) {
  for (const bool spins : {true, false}) {
    Team team(3, spins);
    EXPECT_TRUE(Helpers().empty()) << "before the first step";
    for (int i = 0; i < 20; ++i) {
      MeetInAllParts(&team);
      if (i % 3 == 0) team.Rest();
    }
    EXPECT_EQ(Helpers().size(), 2u);
  }
  EXPECT_TRUE(Helpers().empty());
}

TEST(TeamTest, NumbersOfParts) {
  const Team team(3);
  EXPECT_EQ(team.threads(), 3);
  EXPECT_EQ(team.PartsOf(0, 10), 1u);
  EXPECT_EQ(team.PartsOf(19, 10), 1u);
  EXPECT_EQ(team.PartsOf(20, 10), 2u);
  EXPECT_EQ(team.PartsOf(1'000'000'000'000, 10), 3u);
  EXPECT_EQ(Team(0).threads(), 1);
  EXPECT_EQ(Team(1000).threads(), Team::kMostThreads);
  EXPECT_EQ(Team::Alone()->PartsOf(1'000'000, 1), 1u);
  Team two(2);
  std::atomic<uint32_t> ran{0};
  two.Run(Team::kMostParts + 5, [&](uint32_t) noexcept { ran.fetch_add(1); });
  EXPECT_EQ(ran.load(), Team::kMostParts + 5);
}

TEST(TeamTest, AStepWithinAPartRunsInItsThread) {
  Team team(3);
  std::atomic<int> elsewhere{0}, ran{0};
  for (int i = 0; i < 50; ++i) {
    team.Run(3, [&](uint32_t) noexcept {
      const std::thread::id own = std::this_thread::get_id();
      team.Run(4, [&](uint32_t) noexcept {
        ran.fetch_add(1);
        if (std::this_thread::get_id() != own) elsewhere.fetch_add(1);
      });
    });
  }
  EXPECT_EQ(ran.load(), 50 * 3 * 4);
  EXPECT_EQ(elsewhere.load(), 0);
}

TEST(TeamTest, ThreadsThatCallAtTheSameTimeDoNotMix) {
  Team team(3);
  std::array<std::atomic<int>, 2> ran{};
  const auto call = [&](size_t caller) {
    for (int i = 0; i < 2000 / kSlowness; ++i) {
      team.Run(3, [&](uint32_t) noexcept { ran[caller].fetch_add(1); });
    }
  };
  std::thread other(call, 1);
  call(0);
  other.join();
  for (const std::atomic<int>& each : ran) EXPECT_EQ(each.load(), 2000 / kSlowness * 3);
}

TEST(TeamTest, HelpersBlockSignals) {
  Team team(2);
  MeetInAllParts(&team);
  const std::vector<std::string> helpers = Helpers();
  ASSERT_EQ(helpers.size(), 1u);
  std::ifstream status(helpers[0] + "/status");
  for (std::string word; status >> word;) {
    if (word != "SigBlk:") continue;
    std::string blocked;
    status >> blocked;
    const uint64_t mask = std::stoull(blocked, nullptr, 16);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}) {
      EXPECT_NE(mask >> (signal - 1) & 1, 0u) << signal;
    }
    return;
  }
  FAIL() << "no SigBlk";
}

// As the scheduler counts it, in nanoseconds.
uint64_t CpuTimeOf(const std::string& task) {
  uint64_t time = std::numeric_limits<uint64_t>::max();
  std::ifstream(task + "/schedstat") >> time;
  return time;
}

bool Sleeps(const std::string& task) {
  std::ifstream stat(task + "/stat");
  std::string pid, name, state;
  stat >> pid >> name >> state;
  return state == "S";
}

TEST(TeamTest, BetweenCallsHelpersDoNotRun) {
  Team team(3);
  MeetInAllParts(&team);
  team.Rest();
  const std::vector<std::string> helpers = Helpers();
  ASSERT_EQ(helpers.size(), 2u);
  for (const std::string& helper : helpers) {
    ASSERT_TRUE(Eventually([&] { return Sleeps(helper); }));
  }
  std::this_thread::sleep_for(milliseconds(20));  // for what a sanitizer does on the way
  std::vector<uint64_t> before;
  for (const std::string& helper : helpers) before.push_back(CpuTimeOf(helper));
  std::this_thread::sleep_for(milliseconds(100));
  for (size_t i = 0; i < helpers.size(); ++i) EXPECT_EQ(CpuTimeOf(helpers[i]), before[i]);
  MeetInAllParts(&team);
}

TEST(TeamTest, EndsInEveryState) {
  for (const bool spins : {true, false}) {
    for (int i = 0; i < 30; ++i) {
      Team team(1 + i % 4, spins);
      if (i % 5 != 0) MeetInAllParts(&team);  // else: never used
      if (i % 2 == 0) team.Rest();
      if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(1));  // asleep, else perhaps not
    }
  }
  EXPECT_TRUE(Helpers().empty());
}

#if defined(__SSE2__)
TEST(TeamTest, HelpersComputeInTheModesOfTheCaller) {
  Team team(3);
  const unsigned modes = _mm_getcsr();
  for (const bool flushes : {false, true, false}) {
    _mm_setcsr(flushes ? modes | 0x8000 : modes & ~0x8000u);  // denormal results are zero
    std::atomic<int> zeros{0};
    std::atomic<uint32_t> begun{0};
    team.Run(3, [&](uint32_t) noexcept {
      begun.fetch_add(1);
      EXPECT_TRUE(Eventually([&] { return begun.load() == 3; }));
      volatile float least = std::numeric_limits<float>::min();
      volatile float half = least * 0.5f;
      if (half == 0.0f) zeros.fetch_add(1);
    });
    EXPECT_EQ(zeros.load(), flushes ? 3 : 0);
  }
  _mm_setcsr(modes);
}
#endif

TEST(TeamTest, AChildProcessUsesItsOwnThreadsOnly) {
  auto* team = new Team(3);
  MeetInAllParts(team);
  EXPECT_EQ(InChild([&] {
              const std::thread::id own = std::this_thread::get_id();
              int ran = 0;
              team->Run(8, [&](uint32_t) noexcept { ran += own == std::this_thread::get_id(); });
              const bool alone = ran == 8;
              delete team;  // joins no thread of the parent
              return alone;
            }),
            0);
  MeetInAllParts(team);  // the parent's helpers are still there
  delete team;
  // A team that has not begun is the child's.
  Team fresh(2);
  EXPECT_EQ(InChild([&] {
              std::atomic<int> ran{0};
              fresh.Run(2, [&](uint32_t) noexcept { ran.fetch_add(1); });
              const bool both = ran.load() == 2;
              fresh.Rest();
              return both;
            }),
            0);
}

// Where the system has no thread left, the call runs with what there is, and one line says so.
TEST(TeamTest, RunsWithFewerThreads) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's runtime needs threads itself";
  int lines[2];
  ASSERT_EQ(pipe(lines), 0);
  const int status = InChild([&] {
    dup2(lines[1], STDERR_FILENO);
    if (!ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok()) return false;
    constexpr uid_t kNobody = 65534;  // root has no limit
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return false;
    const rlimit none{1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return false;
    Team team(4);
    int sum = 0;
    for (int i = 0; i < 10; ++i) {
      team.Run(4, [&](uint32_t part) noexcept { sum += static_cast<int>(part); });
    }
    return sum == 60;
  });
  close(lines[1]);
  std::string log;
  char text[512];
  for (ssize_t n; (n = read(lines[0], text, sizeof text)) > 0;) {
    log.append(text, static_cast<size_t>(n));
  }
  close(lines[0]);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_NE(log.find("1 of 4 threads (INCCL_THREADS) run calls: thread \"inccl-team\" cannot be"),
            std::string::npos)
      << log;
}

}  // namespace
}  // namespace inccl::test
