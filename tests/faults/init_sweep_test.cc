// SPDX-License-Identifier: Apache-2.0
//
// A rank is killed at every fault point that the creation of a communicator passes. The others get
// an error that names it, from the creation or from their first call, in time, and end with what
// they began with.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "faults/sweep.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCasesElsewhere = 16;  // over other transports than shared memory, at random

bool OfInit(std::string_view point) {
  for (const char* prefix :
       {"call.", "executor.", "zero_copy.", "send_recv.", "progress.", "destroy."}) {
    if (point.starts_with(prefix)) return false;
  }
  return true;
}

ccl_result_t Sum(ccl_comm_t comm) {
  float x[16] = {};
  return ccl_allreduce(x, x, 16, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// All of them over shared memory; some, at random, over other transports: creation is much the
// same.
std::vector<Death> Deaths(const std::string& transport) {
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) {
    fault::Arm({});
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
    // The thread of the rendezvous may still be busy with its last words.
    const double limit = Seconds() + SlackSeconds();
    while (side.rank() == 0 && fault::Hits(fault::IndexOf("root.after_go")) == 0 &&
           Seconds() < limit) {
      usleep(1000);
    }
    ReportHits(side);
    ccl_comm_destroy(comm);
    return 0;
  });
  world.ExpectAllExited();
  std::vector<Death> deaths = DeathsOf(world, {0, 1, 2}, kSanitized ? 1 : 3, OfInit);
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    const std::string_view name = fault::kPoints[point];
    const bool foreign = transport != "shm" && name.starts_with("shm.");
    EXPECT_TRUE(!OfInit(name) || foreign ||
                std::any_of(deaths.begin(), deaths.end(),
                            [&](const Death& death) { return death.point == point; }))
        << name << " is not reached";
  }
  if (transport != "shm") KeepAtRandom(kCasesElsewhere, &deaths);
  return deaths;
}

int Body(const Side& side, const Death& death) {
  death.Arm(side);
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return comm == nullptr ? 0 : 11;
  side.mine().stage = 1;
  double start = 0;
  ccl_result_t result = CCL_SUCCESS;
  const double limit = Seconds() + 20.0 * kSlowness;
  while (result == CCL_SUCCESS && Seconds() < limit) {
    start = Seconds();
    result = Sum(comm);
  }
  side.mine().seconds = Seconds() - start;
  side.mine().result = result;
  side.mine().SetText(ccl_get_last_error(comm));
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

// Init failed: of a rank that never registered only its number is known, and of rank 0's process
// where it listened.
void CheckInitFailure(const Death& c, int rank, int result, const std::string& text, pid_t pid) {
  EXPECT_TRUE(result == CCL_REMOTE_ERROR || result == CCL_TIMEOUT) << result << ": " << text;
  EXPECT_EQ(MissingFromError(text, static_cast<ccl_result_t>(result),
                             {.rank = rank, .nranks = kRanks, .during_init = true}),
            "");
  EXPECT_TRUE(
      Matches(text, fmt::format("(peer|rank) {}@[^ :]+:{}", c.victim, pid)) ||
      Matches(text, fmt::format("ranks? ([0-9]+, )*{}(, [0-9]+)* of 3 did not", c.victim)) ||
      (c.victim == 0 && Matches(text, "rendezvous at [0-9.]+:[0-9]+")))
      << text << " does not name rank " << c.victim << ", process " << pid;
}

// A point of the rendezvous may come after its rank has gone on to wait for an error.
void Check(const Death& c, ProcessWorld& world) {
  SCOPED_TRACE(c.Describe());
  ExpectOneDeath(world, kRanks, c.victim, [&](int rank, const Report& report) {
    const bool joined = report.stage == 1;
    const std::string text = report.text;
    const double limit = (joined ? kLocalDeathSeconds : kInitSeconds) + SlackSeconds();
    EXPECT_LT(report.seconds, limit) << text;
    if (!joined) {
      CheckInitFailure(c, rank, report.result, text, world.pid(c.victim));
      return;
    }
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << text;
    EXPECT_EQ(
        MissingFromError(
            text, CCL_REMOTE_ERROR,
            {.rank = rank, .nranks = kRanks, .peers = {c.victim}, .peer_pid = world.pid(c.victim)}),
        "");
  });
}

class InitSweepTest : public TransportFaultTest {
 protected:
  InitSweepTest() : TransportFaultTest(kShortLimits) {}
};

TEST_P(InitSweepTest, Row09_ARankDiesAtEveryPhaseOfInit) {
  ForRow("9");
  Sweep<Death>(Deaths(GetParam()), kRanks, WorldsAtOnce(8), Body, Check);
}
INSTANTIATE_OVER_TRANSPORTS(InitSweepTest);

}  // namespace
}  // namespace inccl::test
