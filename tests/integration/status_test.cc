// SPDX-License-Identifier: Apache-2.0
//
// A client asks what communicators do while these make calls, fail, begin and end. For the thread
// sanitizer above all.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "control/status_socket.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr Time kLimit = 30 * kSecond * kSlowness;

class StatusOfCallsTest : public ::testing::Test {
 protected:
  StatusOfCallsTest() : root_(MakeRoot()), runtime_({{"XDG_RUNTIME_DIR", root_.c_str()}}) {}
  ~StatusOfCallsTest() override {
    EXPECT_TRUE(FindStatusSockets(root_ + "/inccl").empty());
    std::filesystem::remove_all(root_);
  }

  const std::string root_;

 private:
  static std::string MakeRoot() {
    std::string root = ::testing::TempDir() + "inccl-status-XXXXXX";
    EXPECT_NE(mkdtemp(root.data()), nullptr);
    return root;
  }
  const ScopedEnv runtime_;
};

ccl_result_t Sum(ccl_comm_t comm) {
  std::vector<float> data(1000, 1);
  return ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// Asks every process that listens, until it is told to stop, and counts the answers.
void AskUntil(const std::string& directory, const std::atomic<bool>& stop,
              std::atomic<int>* answers) {
  while (!stop) {
    for (const std::string& path : FindStatusSockets(directory)) {
      for (const char* request : {"all", "local"}) {
        const Result<std::string> answer = AskForStatus(path, request, kLimit);
        if (!answer.ok()) continue;  // the process has closed its last communicator
        ++*answers;
        EXPECT_TRUE(answer->starts_with("{\"pid\":") && answer->ends_with("]}\n")) << *answer;
      }
    }
  }
}

TEST_F(StatusOfCallsTest, RanksThatAreThreads) {
  std::atomic<bool> stop{false};
  std::atomic<int> answers{0};
  std::thread client([&] { AskUntil(root_ + "/inccl", stop, &answers); });
  for (int round = 0; round < 5 || (answers == 0 && round < 1000); ++round) {
    RunThreads(3, [](int, ccl_comm_t comm) {
      for (int i = 0; i < 200; ++i) ASSERT_EQ(Sum(comm), CCL_SUCCESS) << ccl_get_last_error(comm);
    });
  }
  stop = true;
  client.join();
  EXPECT_GT(answers, 0);
}

TEST_F(StatusOfCallsTest, RanksThatAreProcesses) {
  const ScopedEnv tcp({{"INCCL_TRANSPORT", "tcp"}});
  ProcessWorld world({.nranks = 3}, [this](const Side& side) {
    std::atomic<bool> stop{false};
    std::atomic<int> answers{0};
    std::thread client([&] { AskUntil(root_ + "/inccl", stop, &answers); });
    ccl_comm_t comm = nullptr, half = nullptr;
    ccl_result_t result = side.Init(&comm, CCL_CONFIG_INIT);
    for (int i = 0; i < 50 && result == CCL_SUCCESS; ++i) result = Sum(comm);
    if (result == CCL_SUCCESS) result = ccl_comm_split(comm, 0, side.rank(), &half, nullptr);
    for (int i = 0; i < 50 && result == CCL_SUCCESS; ++i) result = Sum(half);
    if (result == CCL_SUCCESS) result = Sum(comm);  // all have left the last sum of `half`
    if (side.rank() == 1 && result == CCL_SUCCESS) ccl_comm_revoke(half);
    if (result == CCL_SUCCESS) (void)Sum(half);  // fails soon
    ccl_comm_destroy(half);
    ccl_comm_destroy(comm);
    stop = true;
    client.join();
    return result == CCL_SUCCESS ? 0 : 10;
  });
  world.Wait();
  world.ExpectAllExited();
}

}  // namespace
}  // namespace inccl::test
