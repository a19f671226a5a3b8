// SPDX-License-Identifier: Apache-2.0
//
// What the signs of life cost: the processor time of the library's threads while no call is made.
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "world/clock.h"
#include "world/limits.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 8;
constexpr double kInterval = 0.01, kSeconds = 1.0;  // of the measurement
constexpr double kDefaultInterval = 1.0;
constexpr int kMostPeers = 63;  // whose connections a rank has

// Seconds for which the threads of this process have run, without the calling one.
double OtherThreads() {
  double nanoseconds = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    const std::string id = entry->d_name;
    if (id == "." || id == ".." || id == std::to_string(gettid())) continue;
    double ran = 0;
    std::ifstream("/proc/self/task/" + id + "/schedstat") >> ran;
    nanoseconds += ran;
  }
  closedir(tasks);
  return 1e-9 * nanoseconds;
}

TEST(HeartbeatCostTest, TakesLessThanAHundredthOfAProcessor) {
  if (kSanitized) GTEST_SKIP() << "times of sanitized code say nothing";
  for (const char* transport : {"shm", "tcp"}) {
    const ScopedEnv env({{"INCCL_TRANSPORT", transport},
                         {"INCCL_TEST_HEARTBEAT_MS", "10"},
                         {"INCCL_DEAD_TIMEOUT_MS", "30000"}});
    ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
      const auto everywhere = [&](int stage) {
        side.mine().stage = stage;
        for (int rank = 0; rank < side.nranks(); ++rank) EXPECT_TRUE(side.Await(rank, stage));
      };
      everywhere(1);
      const double began = Seconds(), before = OtherThreads();
      usleep(static_cast<useconds_t>(1e6 * kSeconds));
      const double beats = (Seconds() - began) / kInterval * (kRanks - 1);
      side.mine().seconds = (OtherThreads() - before) / beats;
      everywhere(2);
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
    world.ExpectAllExited();
    double most = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const double each = world.report(rank).seconds;
      EXPECT_GT(each, 0) << "no thread of the library has run";
      most = std::max(most, each);
    }
    const double share = most * kMostPeers / kDefaultInterval;
    fmt::print(
        "{}: {:.1f} us for the signs of life to and from a peer; {:.3f} % of a processor for {} "
        "peers at the default interval\n",
        transport, 1e6 * most, 100 * share, kMostPeers);
    EXPECT_LT(share, 0.01);
  }
}

}  // namespace
}  // namespace inccl::test
