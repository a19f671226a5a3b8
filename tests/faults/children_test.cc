// SPDX-License-Identifier: Apache-2.0
//
// Aborts, deaths and conflicts while communicators are made of communicators.
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

constexpr double kAbortSeconds = 1.0;
constexpr double kDeathSeconds = 2.0;

// Holds the thread of one rank of the communicator that is being made, at the beginning.
class Hold {
 public:
  explicit Hold(int rank) {
    fault::Plan plan;
    plan.rank = rank;
    plan.point = fault::IndexOf("init.begin");
    plan.action = fault::Action::kCall;
    plan.call = [this] {
      arrived_ = true;
      while (!released_) usleep(1000);
    };
    fault::Arm(plan);
  }
  ~Hold() { fault::Disarm(); }
  void Await() const {
    while (!arrived_) usleep(1000);
  }
  void Release() { released_ = true; }

 private:
  std::atomic<bool> arrived_{false}, released_{false};
};

class ChildrenTest : public FaultTest {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    FaultTest::SetUp();
    watchdog_ = std::make_unique<Watchdog>(100.0 * kSlowness);
    ASSERT_EQ(ccl_comm_init_all(comms_, kRanks, nullptr), CCL_SUCCESS);
  }
  void TearDown() override {
    for (ccl_comm_t comm : comms_) {
      if (comm == nullptr) continue;
      EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    }
    watchdog_.reset();
    FaultTest::TearDown();
  }
  void ExpectAbortsInTime(int rank) {
    const double start = Seconds();
    EXPECT_EQ(ccl_comm_abort(comms_[rank]), CCL_SUCCESS);
    EXPECT_LT(Seconds() - start, kAbortSeconds + SlackSeconds());
    comms_[rank] = nullptr;
  }

  ccl_comm_t comms_[kRanks] = {};
  std::unique_ptr<Watchdog> watchdog_;
};

TEST_F(ChildrenTest, Row23_AbortEndsASplit) {
  ForRow("23", "loopback");
  Hold hold(2);
  std::vector<std::thread> threads;
  ccl_result_t results[kRanks] = {};
  std::string texts[kRanks];
  ccl_comm_t parts[kRanks] = {};
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = ccl_comm_split(comms_[rank], 0, 0, &parts[rank], nullptr);
      texts[rank] = ccl_get_last_error(nullptr);
    });
  }
  hold.Await();
  usleep(50000);  // the others are on their way to the new communicator
  ExpectAbortsInTime(0);
  threads[0].join();
  threads[1].join();  // does not wait for the third either
  hold.Release();
  threads[2].join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(results[rank], CCL_REMOTE_ERROR);
    EXPECT_EQ(parts[rank], nullptr);
    EXPECT_NE(texts[rank].find("rank 0/3 aborted"), std::string::npos) << texts[rank];
  }
}

TEST_F(ChildrenTest, Row23_AbortEndsAShrinkThatWaitsForARank) {
  ForRow("23,24", "loopback");
  ccl_result_t result = CCL_SUCCESS;
  std::string text;
  std::thread caller([&] {
    ccl_comm_t none = nullptr;
    result = ccl_comm_shrink(comms_[0], nullptr, 0, &none, nullptr, CCL_SHRINK_DEFAULT);
    text = ccl_get_last_error(nullptr);
  });
  usleep(50000);
  ExpectAbortsInTime(0);
  caller.join();
  EXPECT_EQ(result, CCL_REMOTE_ERROR);
  EXPECT_NE(text.find("rank 0/3 aborted"), std::string::npos) << text;
}

// The others go on without the rank that aborts.
TEST_F(ChildrenTest, Row23_AbortEndsAShrinkThatIsJoining) {
  ForRow("23,24", "loopback");
  Hold hold(2);
  std::vector<std::thread> threads;
  ccl_result_t results[kRanks] = {};
  ccl_comm_t smaller[kRanks] = {};
  std::string texts[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] =
          ccl_comm_shrink(comms_[rank], nullptr, 0, &smaller[rank], nullptr, CCL_SHRINK_DEFAULT);
      texts[rank] = ccl_get_last_error(nullptr);
    });
  }
  hold.Await();
  usleep(50000);
  ExpectAbortsInTime(0);
  hold.Release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(results[0], CCL_REMOTE_ERROR);
  EXPECT_NE(texts[0].find("rank 0/3 aborted"), std::string::npos) << texts[0];
  for (int rank = 1; rank < kRanks; ++rank) {
    ASSERT_EQ(results[rank], CCL_SUCCESS) << texts[rank];
    int count = 0;
    EXPECT_EQ(ccl_comm_count(smaller[rank], &count), CCL_SUCCESS);
    EXPECT_EQ(count, 2);
    EXPECT_EQ(ccl_comm_destroy(smaller[rank]), CCL_SUCCESS);
  }
}

TEST_F(ChildrenTest, Row23_AbortEndsFinalize) {
  ForRow("23", "loopback");
  ccl_stream_t stream = nullptr;
  ASSERT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
  float x = 1;
  ASSERT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms_[0], stream), CCL_SUCCESS);
  ccl_result_t result = CCL_SUCCESS;
  std::thread caller([&] { result = ccl_comm_finalize(comms_[0]); });
  usleep(50000);
  ExpectAbortsInTime(0);
  caller.join();
  EXPECT_EQ(result, CCL_REMOTE_ERROR);
  EXPECT_EQ(ccl_stream_synchronize(stream), CCL_REMOTE_ERROR);
  EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
}

// A thread calls while another one's call ends with an error: both get the error.
TEST_F(ChildrenTest, Row23_ACallBesideOneThatFailsGetsItsError) {
  ForRow("23", "loopback");
  ccl_result_t beside = CCL_SUCCESS;
  std::string text;
  fault::Plan plan;
  plan.rank = 0;
  plan.point = fault::IndexOf("call.after_finish");
  plan.action = fault::Action::kCall;
  plan.call = [&] {  // the failed call has not left the communicator yet
    std::thread([&] {
      float x = 1;
      beside = ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms_[0], nullptr);
      text = ccl_get_last_error(nullptr);
    }).join();
  };
  fault::Arm(plan);
  ccl_result_t result = CCL_SUCCESS;
  std::thread caller([&] {
    float x = 1;
    result = ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms_[0], nullptr);
  });
  while (fault::Hits(fault::IndexOf("call.after_begin")) == 0) usleep(1000);
  EXPECT_EQ(ccl_comm_revoke(comms_[1]), CCL_SUCCESS);
  caller.join();
  fault::Disarm();
  EXPECT_EQ(result, CCL_REMOTE_ERROR);
  EXPECT_EQ(beside, CCL_REMOTE_ERROR);
  EXPECT_NE(text.find("rank 1/3 revoked"), std::string::npos) << text;
}

class ProcessChildrenTest : public TransportFaultTest {};

// The process that made the id, and listens, is stopped.
TEST_P(ProcessChildrenTest, Row23_AbortEndsCreationAtAStoppedRendezvous) {
  ForRow("23");
  ProcessWorld world({.nranks = 2, .id_maker = 1}, [](const Side& side) {
    const ccl_unique_id_t id = side.Id();
    side.mine().stage = 1;
    if (side.rank() == 1) raise(SIGSTOP);
    EXPECT_TRUE(side.Await(1, 1));
    usleep(100000);
    ccl_config_t config = CCL_CONFIG_INIT;
    config.blocking = 0;
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(ccl_comm_init_rank_config(&comm, 2, id, 0, &config), CCL_IN_PROGRESS);
    usleep(100000);
    const double start = Seconds();
    EXPECT_EQ(ccl_comm_abort(comm), CCL_SUCCESS);
    side.mine().seconds = Seconds() - start;
    return 0;
  });
  while (world.Running(0)) usleep(1000);
  world.Kill(1, SIGKILL);
  world.ExpectAllExited({1});
  EXPECT_LT(world.report(0).seconds, kAbortSeconds + SlackSeconds());
}

// A rank dies between the exchanges of a split and the new communicator.
TEST_P(ProcessChildrenTest, Row09_ARankDiesInASplit) {
  ForRow("9");
  constexpr int kRanks = 4;
  for (const int victim : {0, 3}) {
    for (const char* point : {"init.begin", "bootstrap.after_authentication"}) {
      SCOPED_TRACE(fmt::format("rank={};point={}", victim, point));
      ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
        ccl_comm_t comm = nullptr, part = nullptr;
        if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
        side.mine().stage = 1;
        for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 1));
        fault::Plan plan;
        plan.point = fault::IndexOf(point);
        plan.action = fault::Action::kKill;
        if (side.rank() == victim) fault::Arm(plan);
        const double start = Seconds();
        side.mine().result = ccl_comm_split(comm, 0, 0, &part, nullptr);
        side.mine().seconds = Seconds() - start;
        side.mine().SetText(ccl_get_last_error(nullptr));
        EXPECT_EQ(part, nullptr);
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
      });
      world.ExpectAllExited({victim});
      EXPECT_TRUE(world.Wait()[static_cast<size_t>(victim)].Killed(SIGKILL));
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == victim) continue;
        const Report& report = world.report(rank);
        EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
        EXPECT_LT(report.seconds, kDeathSeconds + SlackSeconds());
        EXPECT_EQ(
            MissingFromError(
                report.text, CCL_REMOTE_ERROR,
                {.rank = rank, .nranks = kRanks, .peers = {victim}, .peer_pid = world.pid(victim)}),
            "")
            << report.text;
      }
    }
  }
}

// Two parts of a communicator leave each other at the same time.
TEST_P(ProcessChildrenTest, Row24_TwoDisjointShrinksAtOnce) {
  ForRow("24");
  constexpr int kRanks = 5;
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    for (int round = 0; round < 5; ++round) {
      std::vector<int> others;
      for (int rank = 0; rank < kRanks; ++rank) {
        if ((rank + round) % 2 != (side.rank() + round) % 2) others.push_back(rank);
      }
      ccl_comm_t smaller = nullptr;
      const ccl_result_t result =
          ccl_comm_shrink(comm, others.data(), static_cast<int>(others.size()), &smaller, nullptr,
                          CCL_SHRINK_DEFAULT);
      EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(nullptr);
      if (result != CCL_SUCCESS) return 11;
      int32_t sum = 1 << side.rank();
      EXPECT_EQ(ccl_allreduce(&sum, &sum, 1, CCL_INT32, CCL_SUM, smaller, nullptr), CCL_SUCCESS)
          << ccl_get_last_error(smaller);
      EXPECT_EQ(sum, side.rank() % 2 == 0 ? 0b10101 : 0b01010);
      EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  world.ExpectAllExited();
}
INSTANTIATE_OVER_TRANSPORTS(ProcessChildrenTest);

}  // namespace
}  // namespace inccl::test
