// SPDX-License-Identifier: Apache-2.0
#include "world/world.h"

#include <gtest/gtest.h>

#include <thread>

#include "world/stacks.h"

namespace inccl::test {

void RunThreads(int n, const Body& body, int deadline_ms) {
  const Watchdog watchdog(deadline_ms / 1000.0);
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

std::vector<RankEnd> RunRawProcesses(
    int n, int deadline_ms, const std::function<int(int rank, const ccl_unique_id_t& id)>& entry,
    const std::function<void(const std::vector<pid_t>&)>& while_running) {
  // What is left open when a body ends is its own affair here.
  ProcessWorld world({.nranks = n, .deadline_seconds = deadline_ms / 1000.0, .baseline = false},
                     [&](const Side& side) { return entry(side.rank(), side.Id()); });
  if (while_running) {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < n; ++rank) pids.push_back(world.pid(rank));
    while_running(pids);
  }
  return world.Wait();
}

void RunProcesses(int n, const Body& body, int deadline_ms) {
  ProcessWorld world({.nranks = n, .deadline_seconds = deadline_ms / 1000.0},
                     [&](const Side& side) {
                       ccl_comm_t comm = nullptr;
                       const ccl_config_t config = CCL_CONFIG_INIT;
                       const ccl_result_t result = side.Init(&comm, config);
                       EXPECT_EQ(result, CCL_SUCCESS) << side.mine().text;
                       if (result != CCL_SUCCESS) return 104;
                       body(side.rank(), comm);
                       EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
                       return 0;
                     });
  world.ExpectAllExited();
}

}  // namespace inccl::test
