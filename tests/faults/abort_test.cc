// SPDX-License-Identifier: Apache-2.0
//
// Aborts at every step of a call, with dead and stopped peers, in great number; destruction with
// calls under way; many lives of communicators; many jobs beside each other.
#include <fmt/format.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

constexpr double kAbortSeconds = 1.0;

ccl_result_t Sum(ccl_comm_t comm, size_t count, float value = 1.0f) {
  std::vector<float> data(count, value);
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  int nranks = 0;
  if (result == CCL_SUCCESS && ccl_comm_count(comm, &nranks) == CCL_SUCCESS) {
    for (const float x : data) EXPECT_EQ(x, value * static_cast<float>(nranks));
  }
  return result;
}

class AbortTest : public FaultTest {};

// Rank 0's thread arrives at a point; at that moment another thread begins to abort.
void AbortAt(size_t point, uint64_t hit) {
  constexpr int kRanks = 3;
  std::vector<ccl_comm_t> comms(kRanks);
  ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS);
  std::thread aborter;
  double abort_seconds = 0;
  fault::Plan plan;
  plan.rank = 0;
  plan.point = point;
  plan.hit = hit;
  plan.action = fault::Action::kCall;
  plan.call = [&] {
    aborter = std::thread([&] {
      const double start = Seconds();
      EXPECT_EQ(ccl_comm_abort(comms[0]), CCL_SUCCESS);
      abort_seconds = Seconds() - start;
    });
    usleep(500);
  };
  fault::Arm(plan);
  std::vector<std::thread> threads;
  std::vector<ccl_result_t> results(kRanks, CCL_SUCCESS);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {  // for as long as the other thread takes; there is a watchdog
      while (results[rank] == CCL_SUCCESS) results[rank] = Sum(comms[rank], 5000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  fault::Disarm();
  ASSERT_TRUE(aborter.joinable()) << "not reached";
  aborter.join();
  EXPECT_LT(abort_seconds, kAbortSeconds + SlackSeconds());
  // Its own call ends with the abort, or finds the communicator gone.
  EXPECT_TRUE(results[0] == CCL_REMOTE_ERROR || results[0] == CCL_INVALID_ARGUMENT) << results[0];
  for (size_t rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(results[rank], CCL_REMOTE_ERROR);
    const std::string text = ccl_get_last_error(comms[rank]);
    EXPECT_TRUE(Matches(text, "peer [01]@.*rank 0/3 aborted")) << text;
    EXPECT_EQ(ccl_comm_destroy(comms[rank]), CCL_SUCCESS);
  }
}

TEST_F(AbortTest, Row23_FromAnotherThreadAtEveryStep) {
  ForRow("23", "loopback");
  const Watchdog watchdog(100.0 * kSlowness);
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    const std::string_view name = fault::kPoints[point];
    if (!name.starts_with("call.") && !name.starts_with("executor.")) continue;
    for (const uint64_t hit : {1, 7, 30}) {
      SCOPED_TRACE(fmt::format("{} {}", name, hit));
      AbortAt(point, hit);
    }
  }
}

TEST_F(AbortTest, Row23_AThousandAborts) {
  ForRow("23", "loopback");
  const Watchdog watchdog(100.0 * kSlowness);
  const int cycles = kSanitized ? 100 : 1000;
  std::unique_ptr<Baseline> baseline;
  for (int i = 0; i < cycles; ++i) {
    if (i == cycles / 5) {
      baseline = std::make_unique<Baseline>(kSanitized ? Baseline::kAnyRss : 4 * 1024);
    }
    ccl_comm_t comms[2];
    ASSERT_EQ(ccl_comm_init_all(comms, 2, nullptr), CCL_SUCCESS) << ccl_get_last_error(nullptr);
    std::thread waiter([&] { EXPECT_EQ(Sum(comms[1], 100), CCL_REMOTE_ERROR); });
    if (i % 2 == 0) usleep(static_cast<useconds_t>(i % 500));
    ASSERT_EQ(ccl_comm_abort(comms[0]), CCL_SUCCESS);
    waiter.join();
    ASSERT_EQ(i % 3 == 0 ? ccl_comm_abort(comms[1]) : ccl_comm_destroy(comms[1]), CCL_SUCCESS);
  }
}

TEST_F(AbortTest, Row23_DestroyWithCallsUnderWay) {
  ForRow("23", "loopback");
  const Watchdog watchdog(100.0 * kSlowness);
  const ShortWatchdog short_watchdog;
  ccl_comm_t comms[2];
  ASSERT_EQ(ccl_comm_init_all(comms, 2, nullptr), CCL_SUCCESS);
  ccl_stream_t stream = nullptr;
  ASSERT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
  float x = 1;
  ASSERT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms[0], stream), CCL_SUCCESS);
  const double start = Seconds();
  EXPECT_EQ(ccl_comm_destroy(comms[0]), CCL_SUCCESS);  // rank 1 never comes
  EXPECT_LT(Seconds() - start, kOpSeconds + SlackSeconds()) << "bounded by the watchdog";
  EXPECT_NE(ccl_stream_synchronize(stream), CCL_SUCCESS);
  EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(comms[1]), CCL_SUCCESS);
}

class ProcessAbortTest : public TransportFaultTest {};

// Neither dead nor stopped peers are needed.
TEST_P(ProcessAbortTest, Row23_NeedsNoPeer) {
  ForRow("23");
  ProcessWorld world({.nranks = 4}, [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    EXPECT_EQ(Sum(comm, 1000), CCL_SUCCESS);
    side.mine().stage = 1;
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(side.Await(rank, 1));
    if (side.rank() == 1) raise(SIGKILL);
    if (side.rank() == 2) raise(SIGSTOP);
    std::thread caller([&] { EXPECT_NE(Sum(comm, 1000000), CCL_SUCCESS); });
    usleep(100000);
    const double start = Seconds();
    const ccl_result_t result = ccl_comm_abort(comm);
    side.mine().seconds = Seconds() - start;
    caller.join();
    return result == CCL_SUCCESS ? 0 : 12;
  });
  while (world.Running(0) || world.Running(3)) usleep(1000);
  world.Kill(2, SIGKILL);
  world.ExpectAllExited({1, 2});
  for (const int rank : {0, 3}) {
    EXPECT_LT(world.report(rank).seconds, kAbortSeconds + SlackSeconds());
  }
}

// One after the other: nothing accumulates.
TEST_P(ProcessAbortTest, Row09_AThousandLives) {
  ForRow("9,23");
  const int lives = kSanitized ? 50 : GetParam() == std::string("shm") ? 1000 : 300;
  ProcessWorld world({.nranks = 2, .deadline_seconds = 120.0 * Slowness()}, [&](const Side& side) {
    std::unique_ptr<Baseline> baseline;
    for (int life = 1; life <= lives; ++life) {
      if (life == lives / 5) {
        baseline = std::make_unique<Baseline>(kSanitized ? Baseline::kAnyRss : 4 * 1024);
      }
      // Rank 0 makes an id for each and leaves it in its report.
      ccl_unique_id_t id;
      if (side.rank() == 0) {
        EXPECT_TRUE(side.Await(1, life - 1));
        EXPECT_EQ(ccl_get_unique_id(&id), CCL_SUCCESS) << ccl_get_last_error(nullptr);
        std::memcpy(side.mine().text, &id, sizeof id);
        side.mine().stage = life;
      } else {
        EXPECT_TRUE(side.Await(0, life));
        std::memcpy(&id, side.of(0).text, sizeof id);
        side.mine().stage = life;
      }
      ccl_comm_t comm = nullptr;
      EXPECT_EQ(ccl_comm_init_rank(&comm, 2, id, side.rank()), CCL_SUCCESS)
          << ccl_get_last_error(nullptr);
      if (comm == nullptr) return 10;
      EXPECT_EQ(Sum(comm, 100), CCL_SUCCESS) << ccl_get_last_error(comm);
      EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    }
    return 0;
  });
  world.ExpectAllExited();
}

// Jobs of the same user on one host, by launcher's variables and by id, at the same time; in one of
// them a rank dies.
TEST_P(ProcessAbortTest, Row28_TenJobsDoNotNoticeEachOther) {
  ForRow("28");
  constexpr int kRanks = 3, kDoomed = 4;
  const std::string job = fmt::format("jobs {}", getpid());
  RunWorlds(
      10, 10,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks, .deadline_seconds = 60.0 * kSlowness},
            [&, i](const Side& side) {
              const std::string long_init = std::to_string(20000 * kSlowness);
              setenv("INCCL_INIT_TIMEOUT_MS", long_init.c_str(), 1);
              ccl_comm_t comm = nullptr;
              if (i % 2 == 0) {
                setenv("INCCL_RANK", std::to_string(side.rank()).c_str(), 1);
                setenv("INCCL_SIZE", "3", 1);
                setenv("INCCL_JOB", fmt::format("{} {}", job, i).c_str(), 1);
                EXPECT_EQ(ccl_comm_init_env(&comm, nullptr), CCL_SUCCESS)
                    << ccl_get_last_error(nullptr);
              } else {
                EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
              }
              if (comm == nullptr) return 10;
              ccl_result_t result = CCL_SUCCESS;
              for (int k = 0; k < 200 && result == CCL_SUCCESS; ++k) {
                if (i == kDoomed && k == 50 && side.rank() == 1) raise(SIGKILL);
                result = Sum(comm, 1000, static_cast<float>(i + 1));
              }
              side.mine().result = result;
              return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
            });
      },
      [&](size_t i, ProcessWorld& world) {
        SCOPED_TRACE(i);
        world.ExpectAllExited(i == kDoomed ? std::vector<int>{1} : std::vector<int>());
        for (int rank = 0; rank < kRanks; ++rank) {
          if (i == kDoomed && rank == 1) continue;
          EXPECT_EQ(world.report(rank).result, i == kDoomed ? CCL_REMOTE_ERROR : CCL_SUCCESS);
        }
      });
}
INSTANTIATE_OVER_TRANSPORTS(ProcessAbortTest);

}  // namespace
}  // namespace inccl::test
