// SPDX-License-Identifier: Apache-2.0
//
// A rank whose log is not read: its standard error is a pipe that is full. It makes its calls as
// if nothing were, and its peers do not take it for dead.
#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>

#include "control/loop.h"
#include "faults/fault_test.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 1;

// The pipe's writers wait, and no process reads it. False: there is none.
bool TakeStandardErrorAway(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const std::string block(4096, 'x');
  while (write(ends[1], block.data(), block.size()) > 0) {
  }
  while (write(ends[1], "x", 1) > 0) {
  }
  return fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) >= 0;
}

// Logs whenever the control thread looks.
class Logger final : public control::Member {
 public:
  void OnEvents(uint32_t, uint32_t) override {}
  void OnWake() override {
    Log(LogLevel::kWarn, LogSubsystem::kControl, "from the control thread");
  }
  Time OnTime(Time, Time) override { return kNever; }
};

class LogTest : public TransportFaultTest {
 protected:
  LogTest() : TransportFaultTest({.dead_seconds = kDeadSeconds}) {}
};

TEST_P(LogTest, Row22_AStandardErrorThatIsNotRead) {
  ForRow("22");
  const ScopedEnv env({{"INCCL_DEBUG", "INFO"}, {"INCCL_DEBUG_SUBSYS", "COLL"}});
  ProcessWorld world(
      {.nranks = kRanks, .deadline_seconds = 15.0 * kSlowness}, [](const Side& side) {
        ccl_comm_t comm = nullptr;
        if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
        int ends[2] = {-1, -1};
        const int own = dup(STDERR_FILENO);
        const auto logger = std::make_shared<Logger>();
        uint64_t member = 0;
        if (side.rank() == kVictim) {
          if (!TakeStandardErrorAway(ends)) return 11;
          // A line of the control thread, which has to say meanwhile that this rank is alive.
          member = *control::Loop::Get().Join(logger);
          control::Loop::Get().Wake(member);
        }
        // For longer than a dead rank has.
        int code = 0;
        const double end = Seconds() + 1.5 * kDeadSeconds;
        for (int more = 1; more == 1 && code == 0;) {
          usleep(50000);
          int go_on = Seconds() < end ? 1 : 0;  // as rank 0 says
          if (ccl_broadcast(&go_on, &more, 1, CCL_INT32, 0, comm, nullptr) != CCL_SUCCESS)
            code = 12;
        }
        side.mine().SetText(ccl_get_last_error(comm));
        if (member != 0) control::Loop::Get().Leave(member);
        dup2(own, STDERR_FILENO);
        for (const int fd : {own, ends[0], ends[1]}) {
          if (fd >= 0) close(fd);
        }
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? code : 13;
      });
  world.ExpectAllExited();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_STREQ(world.report(rank).text, "") << "rank " << rank;
  }
}

INSTANTIATE_OVER_SHM(LogTest);

}  // namespace
}  // namespace inccl::test
