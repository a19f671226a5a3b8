// SPDX-License-Identifier: Apache-2.0
//
// A rank is killed at every fault point that the creation of a communicator passes. The others get
// an error that names it, from the creation or from their first call, in time, and end with what
// they began with.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/fault_point.h"
#include "base/rng.h"
#include "faults/fault_test.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCasesElsewhere = 16;  // over other transports than shared memory, at random
static_assert(fault::kPointCount <= Report::kCounters);

bool OfInit(std::string_view point) {
  for (const char* prefix :
       {"call.", "executor.", "zero_copy.", "send_recv.", "progress.", "destroy."}) {
    if (point.starts_with(prefix)) return false;
  }
  return true;
}

struct Case {
  int victim;
  size_t point;
  uint64_t hit;
};

std::string Describe(const Case& c) {
  return fmt::format("rank={};point={};hit={}", c.victim, fault::kPoints[c.point], c.hit);
}

ccl_result_t Sum(ccl_comm_t comm) {
  float x[16] = {};
  return ccl_allreduce(x, x, 16, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// Counts how often each rank reaches each point, if no rank dies.
void CountHits(std::vector<std::vector<uint64_t>>* hits) {
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
    for (size_t i = 0; i < fault::kPointCount; ++i) side.mine().counters[i] = fault::Hits(i);
    ccl_comm_destroy(comm);
    return 0;
  });
  world.ExpectAllExited();
  hits->assign(kRanks, {});
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < fault::kPointCount; ++i) {
      (*hits)[static_cast<size_t>(rank)].push_back(world.report(rank).counters[i]);
    }
  }
}

// All of them over shared memory; some, at random, over other transports: creation is much the
// same.
std::vector<Case> Cases(const std::string& transport) {
  std::vector<std::vector<uint64_t>> hits;
  CountHits(&hits);
  std::vector<Case> cases;
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    if (!OfInit(fault::kPoints[point])) continue;
    uint64_t reached = 0;
    for (int victim = 0; victim < kRanks; ++victim) {
      const uint64_t times = hits[static_cast<size_t>(victim)][point];
      reached += times;
      for (uint64_t hit = 1; hit <= std::min<uint64_t>(times, kSanitized ? 1 : 3); ++hit) {
        cases.push_back({victim, point, hit});
      }
    }
    const bool foreign = transport != "shm" && fault::kPoints[point].starts_with("shm.");
    EXPECT_TRUE(reached > 0 || foreign) << fault::kPoints[point] << " is not reached";
  }
  if (transport == "shm") return cases;
  Rng rng(TestSeed());
  for (size_t i = 0; i < kCasesElsewhere; ++i) {
    std::swap(cases[i], cases[i + rng.Below(cases.size() - i)]);
  }
  cases.resize(kCasesElsewhere);
  return cases;
}

int Body(const Side& side, const Case& c) {
  if (side.rank() == c.victim) {
    fault::Arm({.point = c.point, .hit = c.hit, .action = fault::Action::kKill});
  }
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
void CheckInitFailure(const Case& c, int rank, int result, const std::string& text, pid_t pid) {
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

void Check(const Case& c, ProcessWorld& world) {
  SCOPED_TRACE(Describe(c));
  const std::vector<RankEnd>& ends = world.Wait();
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    if (rank == c.victim) {
      // A point of the rendezvous may come after its rank has gone on to wait for an error.
      EXPECT_TRUE(end.Killed(SIGKILL)) << "rank " << rank << " " << end.Describe();
      continue;
    }
    EXPECT_TRUE(end.Exited()) << "rank " << rank << " " << end.Describe();
    Report& report = world.report(rank);
    const bool joined = report.stage == 1;
    const std::string text = report.text;
    const double limit = (joined ? kLocalDeathSeconds : kInitSeconds) + SlackSeconds();
    EXPECT_LT(report.seconds, limit) << text;
    if (!joined) {
      CheckInitFailure(c, rank, report.result, text, world.pid(c.victim));
      continue;
    }
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << text;
    EXPECT_EQ(
        MissingFromError(
            text, CCL_REMOTE_ERROR,
            {.rank = rank, .nranks = kRanks, .peers = {c.victim}, .peer_pid = world.pid(c.victim)}),
        "");
  }
}

class InitSweepTest : public TransportFaultTest {
 protected:
  InitSweepTest() : TransportFaultTest(kShortLimits) {}
};

TEST_P(InitSweepTest, Row09_ARankDiesAtEveryPhaseOfInit) {
  ForRow("9");
  const std::vector<Case> cases = Cases(GetParam());
  RecordProperty("cases", static_cast<int>(cases.size()));
  RunWorlds(
      cases.size(), WorldsAtOnce(8),
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks}, [&](const Side& side) { return Body(side, cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) { Check(cases[i], world); });
}
INSTANTIATE_OVER_TRANSPORTS(InitSweepTest);

}  // namespace
}  // namespace inccl::test
