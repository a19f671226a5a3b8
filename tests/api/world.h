// SPDX-License-Identifier: Apache-2.0
//
// Runs one body on every rank of a communicator, as threads of this process or as processes of
// their own, through the public API only.
#ifndef INCCL_TESTS_API_WORLD_H_
#define INCCL_TESTS_API_WORLD_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

// Sanitizers are slow: the largest cases shrink under them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

using Body = std::function<void(int rank, ccl_comm_t comm)>;

// Sets environment variables for its lifetime; only while no other thread reads the environment.
class ScopedEnv {
 public:
  explicit ScopedEnv(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name);
      old_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
      setenv(name, value, 1);
    }
  }
  ~ScopedEnv() {
    for (const auto& [name, value] : old_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> old_;
};

// n ranks as threads, over ccl_comm_init_all. Each body runs in its own thread.
inline void RunThreads(int n, const Body& body) {
  std::vector<ccl_comm_t> comms(static_cast<size_t>(n));
  ASSERT_EQ(ccl_comm_init_all(comms.data(), n, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { body(rank, comms[static_cast<size_t>(rank)]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (ccl_comm_t comm : comms) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
}

struct ProcessExit {
  pid_t pid = -1;
  int status = -1;         // as waitpid gives it
  bool timed_out = false;  // killed by the harness
};

// Starts n processes; `entry(rank, id)` runs in each and its return value is the exit code. Kills
// what still runs at the deadline.
inline std::vector<ProcessExit> RunRawProcesses(
    int n, int deadline_ms, const std::function<int(int rank, const ccl_unique_id_t& id)>& entry,
    const std::function<void(const std::vector<pid_t>&)>& while_running = {}) {
  std::vector<std::array<int, 2>> pipes(static_cast<size_t>(n));
  for (auto& p : pipes) EXPECT_EQ(pipe(p.data()), 0);
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      ccl_unique_id_t id{};
      if (rank == 0) {
        if (ccl_get_unique_id(&id) != CCL_SUCCESS) {
          std::fprintf(stderr, "ccl_get_unique_id: %s\n", ccl_get_last_error(nullptr));
          _exit(101);
        }
        for (int to = 1; to < n; ++to) {
          if (write(pipes[static_cast<size_t>(to)][1], &id, sizeof id) != sizeof id) _exit(102);
        }
      } else if (read(pipes[static_cast<size_t>(rank)][0], &id, sizeof id) != sizeof id) {
        _exit(103);
      }
      const int code = entry(rank, id);
      std::fflush(nullptr);
      _exit(code);
    }
    pids.push_back(pid);
  }
  for (auto& p : pipes) {
    close(p[0]);
    close(p[1]);
  }
  if (while_running) while_running(pids);
  std::vector<ProcessExit> exits(static_cast<size_t>(n));
  const auto start = std::chrono::steady_clock::now();
  size_t left = pids.size();
  bool killed = false;
  while (left > 0) {
    for (size_t i = 0; i < pids.size(); ++i) {
      if (exits[i].pid >= 0) continue;
      int status = 0;
      if (waitpid(pids[i], &status, WNOHANG) == pids[i]) {
        exits[i] = {pids[i], status, killed};
        --left;
      }
    }
    if (!killed &&
        std::chrono::steady_clock::now() - start > std::chrono::milliseconds(deadline_ms)) {
      for (size_t i = 0; i < pids.size(); ++i) {
        if (exits[i].pid < 0) kill(pids[i], SIGKILL);
      }
      killed = true;
    }
    if (left > 0) usleep(1000);
  }
  return exits;
}

// n ranks as processes; the test fails if a body fails or does not end in time.
inline void RunProcesses(int n, const Body& body, int deadline_ms = 120000) {
  const std::vector<ProcessExit> exits =
      RunRawProcesses(n, deadline_ms, [&](int rank, const ccl_unique_id_t& id) {
        ccl_comm_t comm = nullptr;
        const ccl_result_t result = ccl_comm_init_rank(&comm, n, id, rank);
        EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(nullptr);
        if (result != CCL_SUCCESS) return 104;
        body(rank, comm);
        EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
        return ::testing::Test::HasFailure() ? 1 : 0;
      });
  for (size_t rank = 0; rank < exits.size(); ++rank) {
    EXPECT_FALSE(exits[rank].timed_out) << "rank " << rank << " did not end in time";
    EXPECT_TRUE(WIFEXITED(exits[rank].status) && WEXITSTATUS(exits[rank].status) == 0)
        << "rank " << rank << " ended with status " << exits[rank].status;
  }
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_API_WORLD_H_
