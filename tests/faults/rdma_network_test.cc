// SPDX-License-Identifier: Apache-2.0
//
// What becomes of RDMA when the cable between two devices carries nothing, nothing for a while, or
// little: for the virtual machine of tests/rdma/guest.sh. Only RDMA takes the cable there; control
// messages do not.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "faults/network_faults.h"

namespace inccl::test {
namespace {

// The two ends of the cable. What an end sends goes through its queue.
class Cable {
 public:
  ~Cable() {
    for (const int end : {0, 1}) Mend(end);
  }
  static std::string Missing() {
    if (std::getenv("INCCL_TEST_RDMA") == nullptr) return "needs RDMA devices: INCCL_TEST_RDMA";
    for (const char* end : {"/sys/class/net/roce0", "/sys/class/net/roce1"}) {
      if (access(end, F_OK) != 0) return fmt::format("no {}: not in tests/rdma/guest.sh", end);
    }
    return "";
  }
  void Shape(int end, const std::string& how) {
    Run(fmt::format("tc qdisc replace dev roce{} root netem {}", end, how));
    shaped_[static_cast<size_t>(end)] = true;
  }
  void Cut(int end) { Shape(end, "loss 100%"); }
  void Mend(int end) {
    bool& shaped = shaped_[static_cast<size_t>(end)];
    if (shaped) Run(fmt::format("tc qdisc delete dev roce{} root", end));
    shaped = false;
  }

 private:
  static void Run(const std::string& command) {
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  std::array<bool, 2> shaped_{};
};

constexpr int kRanks = 4;  // two at either end

class RdmaNetworkTest : public FaultTest {
 protected:
  RdmaNetworkTest() : FaultTest({.dead_seconds = kDeadSeconds}) {}
  void SetUp() override {
    FaultTest::SetUp();
    const std::string missing = Cable::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  void TearDown() override {
    world_.reset();
    FaultTest::TearDown();
  }

  void Start() {
    world_ = std::make_unique<ProcessWorld>(
        WorldOptions{.nranks = kRanks,
                     .deadline_seconds = 60.0 * Slowness(),
                     .enter =
                         [](int rank) {
                           const bool near = rank < kRanks / 2;
                           setenv("INCCL_IB_HCA", near ? "=rxe0" : "=rxe1", 1);
                           setenv("INCCL_HOSTID", near ? "near" : "far", 1);
                           return std::string();
                         }},
        SummingRanks());
    AwaitCalls(2);
  }
  // Of every rank, or until it has failed.
  void AwaitCalls(uint64_t more) {
    std::array<uint64_t, kRanks> goals{};
    for (int rank = 0; rank < kRanks; ++rank) {
      goals[static_cast<size_t>(rank)] = world_->report(rank).calls + more;
    }
    const double limit = Seconds() + 30.0 * Slowness();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Report& report = world_->report(rank);
      const uint64_t goal = goals[static_cast<size_t>(rank)];
      while (report.calls < goal && report.result != CCL_REMOTE_ERROR && Seconds() < limit) {
        usleep(1000);
      }
      EXPECT_GE(report.calls, goal) << "rank " << rank << ": " << report.text;
    }
  }
  void ExpectSuccess() {
    world_->report(0).stage = kStopped;
    world_->ExpectAllExited();
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(world_->report(rank).result, CCL_SUCCESS) << world_->report(rank).text;
    }
  }
  ProcessWorld& world() { return *world_; }

  Cable cable_;

 private:
  const ScopedEnv transport_{{{"INCCL_TRANSPORT", "shm,verbs"}}};
  std::unique_ptr<ProcessWorld> world_;
};

// Where one direction is cut, the other carries no acknowledgements.
TEST_F(RdmaNetworkTest, Row04_BothEndsOfACutCableNameARankOfTheOther) {
  ForRow("4", "verbs");
  for (const int ends : {0b11, 0b01, 0b10}) {
    SCOPED_TRACE(fmt::format("cut at ends {:02b}", ends));
    Start();
    for (const int end : {0, 1}) {
      if ((ends >> end & 1) != 0) cable_.Cut(end);
    }
    world().ExpectAllExited();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Report& report = world().report(rank);
      EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
      EXPECT_LT(report.seconds, kDeadSeconds + SlackSeconds()) << report.text;
      std::vector<int> others;
      for (int other = 0; other < kRanks; ++other) {
        if (other != rank) others.push_back(other);
      }
      EXPECT_EQ(MissingFromError(report.text, CCL_REMOTE_ERROR,
                                 {.rank = rank, .nranks = kRanks, .peers = others}),
                "");
      // The connection, whose ends are told that it is lost by one of them.
      EXPECT_TRUE(Matches(report.text,
                          "(rank [01]: verbs: peer [23]|rank [23]: verbs: peer [01])@"
                          "[^ ]+ is lost: transport retry counter exceeded"))
          << report.text;
    }
    for (const int end : {0, 1}) cable_.Mend(end);
  }
}

// Shorter than the devices try again.
TEST_F(RdmaNetworkTest, Row05_ACableThatFlapsIsNoError) {
  ForRow("5", "verbs");
  Start();
  for (const int ends : {0b11, 0b01, 0b10}) {
    for (const int milliseconds : {20, 300}) {
      for (const int end : {0, 1}) {
        if ((ends >> end & 1) != 0) cable_.Cut(end);
      }
      usleep(static_cast<useconds_t>(1000 * milliseconds));
      for (const int end : {0, 1}) cable_.Mend(end);
      AwaitCalls(2);
    }
  }
  ExpectSuccess();
}

TEST_F(RdmaNetworkTest, Row07_ASlowAndLossyCableIsNoFailure) {
  ForRow("7", "verbs");
  Start();
  for (const char* how : {"delay 20ms", "rate 20mbit limit 10000", "loss 2%",
                          "delay 5ms rate 50mbit loss 1% limit 10000"}) {
    SCOPED_TRACE(how);
    for (const int end : {0, 1}) cable_.Shape(end, how);
    AwaitCalls(3);
  }
  for (const int end : {0, 1}) cable_.Mend(end);
  ExpectSuccess();
}

}  // namespace
}  // namespace inccl::test
