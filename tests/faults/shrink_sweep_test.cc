// SPDX-License-Identifier: Apache-2.0
//
// A rank dies, and while the others shrink a second one dies at every fault point it passes: those
// that are left shrink to themselves, and what they reduce is right.

#include <algorithm>
#include <vector>

#include "faults/sweep.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 4, kFirst = 3;
constexpr double kShrinkSeconds = 5.0;

// With `c` null everybody but the first to die shrinks and counts what it passes.
int Body(const Side& side, const Death* c) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  side.mine().stage = 1;
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 1));
  if (side.rank() == kFirst) raise(SIGKILL);
  float x = 1;
  EXPECT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_REMOTE_ERROR);
  fault::Arm({});
  if (c != nullptr) c->Arm(side);
  const double start = Seconds();
  ccl_comm_t smaller = nullptr;
  ccl_result_t result = ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT);
  side.mine().seconds = Seconds() - start;
  ReportHits(side);
  fault::Disarm();
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(nullptr);
  if (result != CCL_SUCCESS) return 11;
  side.mine().stage = 2;
  // The second may have died when the others were done: then they notice in a call, and shrink once
  // more.
  float sum = static_cast<float>(1 << side.rank());
  result = ccl_allreduce(&sum, &sum, 1, CCL_FLOAT32, CCL_SUM, smaller, nullptr);
  if (result == CCL_REMOTE_ERROR && c != nullptr) {
    ccl_comm_t last = nullptr;
    EXPECT_EQ(ccl_comm_shrink(smaller, nullptr, 0, &last, nullptr, CCL_SHRINK_ABORT), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    if (last == nullptr) return 13;
    EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
    smaller = last;
    sum = static_cast<float>(1 << side.rank());
    result = ccl_allreduce(&sum, &sum, 1, CCL_FLOAT32, CCL_SUM, smaller, nullptr);
  }
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(smaller);
  side.mine().result = static_cast<int>(sum);
  EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

std::vector<Death> Deaths() {
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) { return Body(side, nullptr); });
  world.ExpectAllExited({kFirst});
  std::vector<Death> deaths = DeathsOf(world, {0, 1}, 2, [](std::string_view) { return true; });
  EXPECT_GT(deaths.size(), 20u);
  return deaths;
}

void Check(const Death& second, ProcessWorld& world) {
  SCOPED_TRACE(second.Describe());
  const std::vector<RankEnd>& ends = world.Wait();
  const bool died = ends[static_cast<size_t>(second.victim)].Killed(SIGKILL);
  int members = 0;
  for (int rank = 0; rank < kFirst; ++rank) {
    if (!(died && rank == second.victim)) members |= 1 << rank;
  }
  for (int rank = 0; rank < kFirst; ++rank) {
    if (died && rank == second.victim) continue;
    EXPECT_TRUE(ends[static_cast<size_t>(rank)].Exited())
        << "rank " << rank << " " << ends[static_cast<size_t>(rank)].Describe();
    EXPECT_EQ(world.report(rank).result, members);
    EXPECT_LT(world.report(rank).seconds, kShrinkSeconds + SlackSeconds());
  }
}

class ShrinkSweepTest : public TransportFaultTest {
 protected:
  ShrinkSweepTest() : TransportFaultTest(kShortLimits) {}

 private:
  const std::string init_ = Milliseconds(2 * Slowness());
  const ScopedEnv patient_{{{"INCCL_INIT_TIMEOUT_MS", init_.c_str()}}};
};

TEST_P(ShrinkSweepTest, Row24_ASecondRankDiesAtEveryPointOfShrinking) {
  ForRow("24");
  Sweep<Death>(
      Deaths(), kRanks, WorldsAtOnce(4),
      [](const Side& side, const Death& second) { return Body(side, &second); }, Check);
}
INSTANTIATE_OVER_TRANSPORTS(ShrinkSweepTest);

}  // namespace
}  // namespace inccl::test
