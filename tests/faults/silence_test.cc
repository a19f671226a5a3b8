// SPDX-License-Identifier: Apache-2.0
//
// Ranks that stop without ending, that end without a goodbye, and that are merely late: the others
// tell the three apart.
#include <sys/wait.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"
#include "world/sanitizers.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 1;
constexpr size_t kCount = 3000;

// Most of the time is spent waiting, so the worlds of a test run beside each other, of all
// transports and cases.
class SilenceTest : public FaultTest {
 protected:
  struct Running {
    std::string name;
    std::unique_ptr<ProcessWorld> world;
  };

  SilenceTest() : FaultTest(kShortLimits) {}

  static void ForRow(const std::string& rows) {
    std::string transports;
    for (const char* transport : kTransportFactories) {
      if (!transports.empty()) transports += ',';
      transports += transport;
    }
    FaultTest::ForRow(rows, transports);
  }

  // One world for each transport.
  void Start(const std::string& name, const ProcessWorld::Body& body) {
    for (const char* transport : kTransportFactories) {
      const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
      worlds_.push_back({name + " over " + transport,
                         std::make_unique<ProcessWorld>(WorldOptions{.nranks = kRanks}, body)});
    }
  }
  std::vector<Running>& worlds() { return worlds_; }

  void TearDown() override {
    worlds_.clear();
    FaultTest::TearDown();
  }

 private:
  std::vector<Running> worlds_;
};

// All-reduces until one fails; the report says how the last one ended.
void RunUntilError(const Side& side, ccl_comm_t comm, double at_most_seconds) {
  std::vector<float> data(kCount), sum(kCount);
  const double limit = Seconds() + at_most_seconds;
  ccl_result_t result = CCL_SUCCESS;
  double start = 0;
  while (result == CCL_SUCCESS && Seconds() < limit) {
    std::fill(data.begin(), data.end(), static_cast<float>(side.rank() + 1));
    start = Seconds();
    result = ccl_allreduce(data.data(), sum.data(), kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    if (result != CCL_SUCCESS) break;
    ++side.mine().calls;
    for (const float x : sum) ASSERT_EQ(x, kRanks * (kRanks + 1) / 2);
  }
  side.mine().seconds = Seconds() - start;
  side.mine().result = result;
  side.mine().SetText(ccl_get_last_error(comm));
}

int JoinAndRun(const Side& side, double seconds, const fault::Plan* victims_plan) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  if (victims_plan != nullptr && side.rank() == kVictim) fault::Arm(*victims_plan);
  RunUntilError(side, comm, seconds);
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

// The ranks but the victim got kRemoteError that names it, within `seconds` and what is allowed.
void ExpectTold(ProcessWorld& world, double seconds, const std::string& why) {
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    Report& report = world.report(rank);
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
    EXPECT_LT(report.seconds, seconds + SlackSeconds()) << report.text;
    EXPECT_TRUE(Matches(report.text, why)) << report.text;
    EXPECT_EQ(
        MissingFromError(
            report.text, CCL_REMOTE_ERROR,
            {.rank = rank, .nranks = kRanks, .peers = {kVictim}, .peer_pid = world.pid(kVictim)}),
        "");
  }
}

TEST_F(SilenceTest, Row02_AStoppedPeerIsDeadAfterItsTimeAndLearnsItWhenResumed) {
  ForRow("2");
  for (const char* point : {"call.before_begin", "executor.before_publish", "call.after_finish"}) {
    const fault::Plan stop = {
        .point = fault::IndexOf(point), .hit = 3, .action = fault::Action::kStop};
    Start(point, [stop](const Side& side) { return JoinAndRun(side, 60, &stop); });
  }
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    ProcessWorld& world = *running.world;
    while (world.Running(0) || world.Running(2)) usleep(1000);
    EXPECT_TRUE(world.Running(kVictim));
    ExpectTold(world, kDeadSeconds, "no sign of life for [0-9]+ ms \\(limit [0-9]+ ms\\)");
    for (const int rank : {0, 2}) EXPECT_GT(world.report(rank).seconds, 0.9 * kDeadSeconds);
    world.Kill(kVictim, SIGCONT);
    world.ExpectAllExited();
    Report& victim = world.report(kVictim);
    EXPECT_EQ(victim.result, CCL_REMOTE_ERROR) << victim.text;
    EXPECT_EQ(MissingFromError(victim.text, CCL_REMOTE_ERROR, {.rank = kVictim, .nranks = kRanks}),
              "");
    EXPECT_LE(victim.calls,
              std::min(world.report(0).calls.load(), world.report(2).calls.load()) + 1)
        << "a success that the others cannot have taken part in";
  }
}

TEST_F(SilenceTest, Row02_AStopShorterThanTheDeadTimeIsNoError) {
  ForRow("2");
  Start("short stops", [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    float go_on = 1;
    while (go_on > 0) {  // until all have seen the end
      go_on = side.of(0).stage < 2 ? 1.0f : 0.0f;
      const ccl_result_t result =
          ccl_allreduce(&go_on, &go_on, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
      if (result != CCL_SUCCESS) return 11;
      ++side.mine().calls;
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  for (Running& running : worlds()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      while (running.world->report(rank).calls < 5 && running.world->Running(rank)) usleep(100);
    }
  }
  for (int i = 0; i < 3; ++i) {
    for (Running& running : worlds()) running.world->Kill(kVictim, SIGSTOP);
    usleep(static_cast<useconds_t>(0.3e6 * kDeadSeconds));
    for (Running& running : worlds()) running.world->Kill(kVictim, SIGCONT);
    usleep(20000);
  }
  for (Running& running : worlds()) running.world->report(0).stage = 2;
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();
  }
}

// Without a dead time a rank can be stopped for as long as one looks at it.
TEST_F(SilenceTest, Row02_AStopIsNoErrorWithoutADeadTime) {
  ForRow("2");
  // Short beats, and no time for an operation to end first.
  const ScopedEnv beats({{"INCCL_TEST_HEARTBEAT_MS", "20"}, {"INCCL_OP_TIMEOUT_MS", "60000"}});
  const auto body = [](int dead_ms) {
    return [dead_ms](const Side& side) {
      ccl_config_t config = CCL_CONFIG_INIT;
      config.dead_ms = dead_ms;
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, config) != CCL_SUCCESS) return 10;
      side.mine().stage = 1;
      float go_on = 1;
      while (go_on > 0) {
        go_on = side.of(0).stage < 2 ? 1.0f : 0.0f;
        const ccl_result_t result =
            ccl_allreduce(&go_on, &go_on, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
        EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
        if (result != CCL_SUCCESS) return 11;
      }
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    };
  };
  {
    const ScopedEnv off({{"INCCL_DEAD_TIMEOUT_MS", "0"}});
    Start("INCCL_DEAD_TIMEOUT_MS=0", body(0));
  }
  {
    const ScopedEnv low({{"INCCL_DEAD_TIMEOUT_MS", "60"}});  // what the config overrules
    Start("dead_ms = -1", body(-1));
  }
  for (Running& running : worlds()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(running.world->side(0).Await(rank, 1)) << running.name;
    }
    running.world->Kill(kVictim, SIGSTOP);
  }
  usleep(500'000);  // 25 beats
  for (Running& running : worlds()) running.world->Kill(kVictim, SIGCONT);
  for (Running& running : worlds()) running.world->report(0).stage = 2;
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();
  }
}

// All ranks are stopped for longer than all limits, some of them inside a call: when they go on, no
// rank accuses a peer, and the call comes to its end.
TEST_F(SilenceTest, Row02_RanksThatWereStoppedAccuseNoPeer) {
  ForRow("2");
  Start("all stop", [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    side.mine().stage = 1;
    while (side.rank() == 0 && side.of(0).stage < 2) usleep(1000);
    float x = 1;
    const ccl_result_t result = ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
    EXPECT_EQ(x, kRanks);
    side.mine().stage = 3;
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 3));
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  const auto all = [&](auto&& act) {
    for (Running& running : worlds()) {
      for (int rank = 0; rank < kRanks; ++rank) act(*running.world, rank);
    }
  };
  all([](ProcessWorld& world, int rank) { EXPECT_TRUE(world.side(0).Await(rank, 1)); });
  usleep(static_cast<useconds_t>(0.2e6 * kDeadSeconds));  // ranks 1 and 2 are waiting
  all([](ProcessWorld& world, int rank) { world.Kill(rank, SIGSTOP); });
  usleep(static_cast<useconds_t>(1.1e6 * kOpSeconds));
  all([](ProcessWorld& world, int rank) { world.Kill(rank, SIGCONT); });
  usleep(static_cast<useconds_t>(0.2e6 * kDeadSeconds));
  for (Running& running : worlds()) running.world->report(0).stage = 2;
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();
  }
}

// A rank that a debugger holds reads nothing. What it gets meanwhile leaves room for the news that
// one of the others has left in order.
TEST_F(SilenceTest, Row12_WhoLeavesWhileARankIsStoppedHasLeftInOrder) {
  ForRow("12");
  Start("stopped", [](const Side& side) {
    ccl_config_t config = CCL_CONFIG_INIT;
    config.heartbeat_ms = 1;
    config.dead_ms = -1;
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, config) != CCL_SUCCESS) return 10;
    float x = 1;
    EXPECT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
    side.mine().stage = 1;
    EXPECT_TRUE(side.Await(0, 2));  // the test has stopped rank 1 and let time pass
    if (side.rank() != 0) {
      EXPECT_TRUE(side.Await(0, 3));
      usleep(100000);  // rank 0 has gone
      const ccl_result_t result = side.rank() == kVictim
                                      ? ccl_recv(&x, 1, CCL_FLOAT32, 2, comm, nullptr)
                                      : ccl_send(&x, 1, CCL_FLOAT32, kVictim, comm, nullptr);
      EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
    }
    EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    if (side.rank() == 0) side.mine().stage = 3;
    return 0;
  });
  for (Running& running : worlds()) {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(running.world->side(0).Await(rank, 1));
    running.world->Kill(kVictim, SIGSTOP);
  }
  usleep(1500000);  // a thousand heartbeats
  for (Running& running : worlds()) running.world->report(0).stage = 2;
  for (Running& running : worlds()) EXPECT_TRUE(running.world->side(0).Await(0, 3));
  for (Running& running : worlds()) running.world->Kill(kVictim, SIGCONT);
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();
  }
}

TEST_F(SilenceTest, Row03_APeerThatExitsInsideACall) {
  ForRow("3");
  for (const char* point :
       {"call.after_begin", "executor.before_release", "executor.after_publish"}) {
    const fault::Plan exits = {
        .point = fault::IndexOf(point), .hit = 3, .action = fault::Action::kExit};
    Start(point, [exits](const Side& side) {
      if (side.rank() == kVictim) ExitsWithThreadsAtWork();
      return JoinAndRun(side, 60, &exits);
    });
  }
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();  // the one that exits does not hang either
    ExpectTold(*running.world, kLocalDeathSeconds, "closed without finalize");
  }
}

TEST_F(SilenceTest, Row03_APeerThatExitsBetweenCallsWithoutDestroy) {
  ForRow("3,22");
  const double start = Seconds();
  Start("exit", [](const Side& side) {
    if (side.rank() != kVictim) return JoinAndRun(side, 60, nullptr);
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    RunUntilError(side, comm, 0.02);
    ExitsWithThreadsAtWork();
    std::exit(0);  // static destructors and all, with a live communicator
  });
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    running.world->ExpectAllExited();
    ExpectTold(*running.world, kLocalDeathSeconds, "closed without finalize");
  }
  EXPECT_LT(Seconds() - start, 3.0 + SlackSeconds());
}

TEST_F(SilenceTest, Row12_ALatePeerIsNotADeadOne) {
  ForRow("12");
  Start("late", [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    if (side.rank() == kVictim) {  // alive, but it does not come
      while (side.of(0).stage < 1 || side.of(2).stage < 1) usleep(1000);
    }
    RunUntilError(side, comm, 60);
    side.mine().stage = 1;
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  for (Running& running : worlds()) {
    SCOPED_TRACE(running.name);
    ProcessWorld& world = *running.world;
    world.ExpectAllExited();
    for (const int rank : {0, 2}) {
      Report& report = world.report(rank);
      EXPECT_EQ(report.result, CCL_TIMEOUT) << report.text;
      EXPECT_GT(report.seconds, 0.9 * kOpSeconds) << "longer than the dead time, and yet alive";
      EXPECT_LT(report.seconds, kOpSeconds + SlackSeconds());
      EXPECT_FALSE(Matches(report.text, "failed|sign of life")) << report.text;
    }
    // At least the one whose watchdog ended it names who was waited for.
    EXPECT_TRUE(Matches(world.report(0).text, "peer 1@[^ ]+") ||
                Matches(world.report(2).text, "peer 1@[^ ]+"));
    EXPECT_EQ(world.report(kVictim).result, CCL_TIMEOUT) << world.report(kVictim).text;
  }
}

}  // namespace
}  // namespace inccl::test
