// SPDX-License-Identifier: Apache-2.0
//
// Runs one body on every rank of a communicator, as threads of this process or as processes of
// their own, through the public API only.
#ifndef INCCL_TESTS_WORLD_WORLD_H_
#define INCCL_TESTS_WORLD_WORLD_H_

#include <sys/types.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inccl/ccl.h"
#include "world/limits.h"
#include "world/process_world.h"

namespace inccl::test {

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

// n ranks as threads, over ccl_comm_init_all. Each body runs in its own thread. Ends the process,
// with all stacks, after the deadline.
void RunThreads(int n, const Body& body, int deadline_ms = 120000 * kSlowness);

// Starts n processes; `entry(rank, id)` runs in each and its return value is the exit code. Kills
// what still runs at the deadline.
std::vector<RankEnd> RunRawProcesses(
    int n, int deadline_ms, const std::function<int(int rank, const ccl_unique_id_t& id)>& entry,
    const std::function<void(const std::vector<pid_t>&)>& while_running = {});

// n ranks as processes; the test fails if a body fails or does not end in time.
void RunProcesses(int n, const Body& body, int deadline_ms = 120000);

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_WORLD_H_
