// SPDX-License-Identifier: Apache-2.0
//
// How communicators begin and end: in the background, aborted at any time, finalized, revoked,
// destroyed twice, used by a forked child.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsLimit = kSanitized ? 10 : 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ccl_result_t WaitUntilSettled(ccl_comm_t comm) {
  const Clock::time_point start = Clock::now();
  ccl_result_t error = CCL_IN_PROGRESS;
  while (error == CCL_IN_PROGRESS && SecondsSince(start) < 60) {
    EXPECT_EQ(ccl_comm_get_async_error(comm, &error), CCL_SUCCESS);
    usleep(1000);
  }
  return error;
}

bool Says(ccl_comm_t comm, const char* text) {
  return std::string(ccl_get_last_error(comm)).find(text) != std::string::npos;
}

TEST(LifecycleTest, CreatedInTheBackground) {
  const std::vector<ProcessExit> exits =
      RunRawProcesses(3, 60000, [](int rank, const ccl_unique_id_t& id) {
        ccl_config_t config = CCL_CONFIG_INIT;
        config.blocking = 0;
        ccl_comm_t comm = nullptr;
        if (rank == 2) usleep(100000);
        if (ccl_comm_init_rank_config(&comm, 3, id, rank, &config) != CCL_IN_PROGRESS) return 1;
        float value = 1;
        if (rank != 2) {  // the third is not there yet
          if (ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr) !=
                  CCL_INVALID_ARGUMENT ||
              !Says(nullptr, "being created")) {
            return 2;
          }
        }
        if (WaitUntilSettled(comm) != CCL_SUCCESS) return 3;
        if (ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr) != CCL_SUCCESS) {
          return 4;
        }
        if (value != 3) return 5;
        const ccl_result_t finalized = ccl_comm_finalize(comm);
        if (finalized != CCL_IN_PROGRESS) return 6;
        if (WaitUntilSettled(comm) != CCL_SUCCESS) return 7;
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 8;
      });
  for (const ProcessExit& exit : exits) EXPECT_EQ(exit.status, 0);
}

TEST(LifecycleTest, CreationInTheBackgroundFails) {
  ccl_unique_id_t id;
  CHECK_OK(ccl_get_unique_id(&id));
  ccl_config_t config = CCL_CONFIG_INIT;
  config.blocking = 0;
  config.init_timeout_ms = 200;
  ccl_comm_t comm = nullptr;
  ASSERT_EQ(ccl_comm_init_rank_config(&comm, 2, id, 0, &config), CCL_IN_PROGRESS);
  EXPECT_EQ(WaitUntilSettled(comm), CCL_TIMEOUT);
  int count = 0;
  EXPECT_EQ(ccl_comm_count(comm, &count), CCL_TIMEOUT);
  EXPECT_TRUE(Says(comm, "1")) << ccl_get_last_error(comm);
  CHECK_OK(ccl_comm_destroy(comm));
}

TEST(LifecycleTest, AbortEndsCreation) {
  ccl_unique_id_t id;
  CHECK_OK(ccl_get_unique_id(&id));
  ccl_config_t config = CCL_CONFIG_INIT;
  config.blocking = 0;
  ccl_comm_t comm = nullptr;
  ASSERT_EQ(ccl_comm_init_rank_config(&comm, 2, id, 1, &config), CCL_IN_PROGRESS);
  usleep(50000);
  const Clock::time_point start = Clock::now();
  CHECK_OK(ccl_comm_abort(comm));
  EXPECT_LT(SecondsSince(start), kSecondsLimit);
}

TEST(LifecycleTest, DestroyedHandlesAreErrors) {
  ccl_comm_t comms[2];
  CHECK_OK(ccl_comm_init_all(comms, 2, nullptr));
  for (ccl_comm_t comm : comms) CHECK_OK(ccl_comm_destroy(comm));
  float value = 0;
  EXPECT_EQ(ccl_comm_destroy(comms[0]), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(ccl_comm_abort(comms[0]), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comms[1], nullptr),
            CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Says(nullptr, "destroyed"));
  ccl_codec_t codec = nullptr;
  CHECK_OK(ccl_codec_create(&codec, "hbi:bits=6"));
  CHECK_OK(ccl_codec_destroy(codec));
  EXPECT_EQ(ccl_codec_destroy(codec), CCL_INVALID_ARGUMENT);
}

TEST(LifecycleTest, OneOfTwoAbortsWins) {
  for (int i = 0; i < 50; ++i) {
    ccl_comm_t comms[2];
    CHECK_OK(ccl_comm_init_all(comms, 2, nullptr));
    std::atomic<int> won{0};
    std::thread caller([&] {
      std::vector<float> value(1 << 16);
      const ccl_result_t result = ccl_allreduce(value.data(), value.data(), value.size(),
                                                CCL_FLOAT32, CCL_SUM, comms[0], nullptr);
      EXPECT_TRUE(result == CCL_REMOTE_ERROR || result == CCL_INVALID_ARGUMENT) << result;
    });
    std::thread others[2];
    for (std::thread& other : others) {
      other = std::thread([&] {
        if (ccl_comm_abort(comms[0]) == CCL_SUCCESS) won.fetch_add(1);
      });
    }
    caller.join();
    for (std::thread& other : others) other.join();
    EXPECT_EQ(won.load(), 1);
    CHECK_OK(ccl_comm_destroy(comms[1]));
  }
}

// The text of the last error is asked for while another thread takes the communicator away.
TEST(LifecycleTest, LastErrorBesideAbort) {
  for (int i = 0; i < (kSanitized ? 50 : 150); ++i) {
    ccl_comm_t comms[3];
    CHECK_OK(ccl_comm_init_all(comms, 3, nullptr));
    CHECK_OK(ccl_comm_revoke(comms[2]));
    std::atomic<bool> asked{false}, over{false};
    std::thread asker([&] {
      while (!over) {
        const std::string text = ccl_get_last_error(comms[2]);
        EXPECT_TRUE(text.empty() || text.find("rank 2/3 revoked") != std::string::npos) << text;
        asked = true;
      }
    });
    while (!asked) std::this_thread::yield();
    CHECK_OK(i % 2 == 0 ? ccl_comm_abort(comms[2]) : ccl_comm_destroy(comms[2]));
    over = true;
    asker.join();
    for (int rank = 0; rank < 2; ++rank) CHECK_OK(ccl_comm_destroy(comms[rank]));
  }
}

TEST(LifecycleTest, RevokeReachesAllRanks) {
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    std::vector<float> value(1000, 1.0f);
    const Clock::time_point start = Clock::now();
    if (rank == 2) {
      usleep(50000);
      CHECK_OK(ccl_comm_revoke(comm));
    }
    EXPECT_EQ(ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT32, CCL_SUM, comm,
                            nullptr),
              CCL_REMOTE_ERROR);
    EXPECT_TRUE(Says(comm, "rank 2/3 revoked")) << ccl_get_last_error(comm);
    EXPECT_LT(SecondsSince(start), kSecondsLimit);
  });
}

TEST(LifecycleTest, FinalizedCommunicatorsTakeNoCalls) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    float value = 1;
    CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
    CHECK_OK(ccl_comm_finalize(comm));
    EXPECT_EQ(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_INVALID_USAGE);
    EXPECT_TRUE(Says(nullptr, "finalized"));
    EXPECT_EQ(ccl_comm_finalize(comm), CCL_INVALID_USAGE);
  });
}

// A child may end as it likes; its parent does not notice, and the child's calls are errors.
TEST(LifecycleTest, ForkedChildrenAreStrangers) {
  RunProcesses(2, [](int, ccl_comm_t comm) {
    float value = 1;
    CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        float mine = 1;
        const bool refused = ccl_allreduce(&mine, &mine, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr) ==
                                 CCL_INVALID_USAGE &&
                             ccl_comm_destroy(comm) == CCL_INVALID_USAGE &&
                             ccl_comm_abort(comm) == CCL_INVALID_USAGE && Says(nullptr, "fork");
        // A leak checker at exit misses the threads of the parent, and takes what they hold for
        // lost.
        if (i % 2 == 0 || kSanitized) _exit(refused ? 0 : 1);
        std::exit(refused ? 0 : 1);
      }
      children.push_back(child);
    }
    for (int i = 0; i < 100; ++i) {
      value = 1;
      CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
      EXPECT_EQ(value, 2);
    }
    for (const pid_t child : children) {
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    value = 1;
    CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
    EXPECT_EQ(value, 2);
  });
}

TEST(LifecycleTest, InputsInPlaceArePreserved) {
  const std::vector<ProcessExit> exits =
      RunRawProcesses(2, 60000, [](int rank, const ccl_unique_id_t& id) {
        ccl_config_t config = CCL_CONFIG_INIT;
        config.preserve_input = 1;
        ccl_comm_t comm = nullptr;
        if (ccl_comm_init_rank_config(&comm, 2, id, rank, &config) != CCL_SUCCESS) return 1;
        const size_t count = 1 << 20;
        std::vector<float> value(count), before;
        for (size_t i = 0; i < count; ++i) value[i] = static_cast<float>(i % 1000) + 0.5f;
        before = value;
        // Different counts: the first part is summed before the ranks see that they disagree.
        const ccl_result_t result =
            ccl_allreduce(value.data(), value.data(), rank == 0 ? count : count - 512, CCL_FLOAT32,
                          CCL_SUM, comm, nullptr);
        if (result != CCL_INVALID_USAGE) return 2;
        if (value != before) return 3;
        (void)ccl_comm_destroy(comm);
        return 0;
      });
  for (const ProcessExit& exit : exits) EXPECT_EQ(exit.status, 0);
}

TEST(LifecycleTest, ConfigIsChecked) {
  ccl_unique_id_t id;
  CHECK_OK(ccl_get_unique_id(&id));
  ccl_comm_t comm = nullptr;
  ccl_config_t config = CCL_CONFIG_INIT;
  config.blocking = 2;
  EXPECT_EQ(ccl_comm_init_rank_config(&comm, 1, id, 0, &config), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Says(nullptr, "blocking"));
  config = CCL_CONFIG_INIT;
  config.size = 1;
  EXPECT_EQ(ccl_comm_init_rank_config(&comm, 1, id, 0, &config), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Says(nullptr, "size"));
}

}  // namespace
}  // namespace inccl::test
