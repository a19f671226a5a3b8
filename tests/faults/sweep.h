// SPDX-License-Identifier: Apache-2.0
//
// A sweep: processes do the same again and again, and each time one of them is killed at another
// fault point (base/fault_point.h). First they do it once without a death, and count.
#ifndef INCCL_TESTS_FAULTS_SWEEP_H_
#define INCCL_TESTS_FAULTS_SWEEP_H_

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/rng.h"
#include "faults/fault_test.h"
#include "support/seed.h"

namespace inccl::test {

static_assert(fault::kPointCount <= Report::kCounters);

// The victim dies when it comes to the point for the hit-th time.
struct Death {
  int victim = -1;
  size_t point = 0;
  uint64_t hit = 0;

  std::string Describe() const {
    return fmt::format("rank={};point={};hit={}", victim, fault::kPoints[point], hit);
  }
  // Called in every process.
  void Arm(const Side& side) const {
    if (side.rank() == victim) {
      fault::Arm({.point = point, .hit = hit, .action = fault::Action::kKill});
    }
  }
};

// Puts into its report how often this process has passed each point since it was armed.
inline void ReportHits(const Side& side) {
  for (size_t i = 0; i < fault::kPointCount; ++i) side.mine().counters[i] = fault::Hits(i);
}

// Of each admitted point the first arrivals, `most` of them, of each victim, as the world's
// processes have counted them.
inline std::vector<Death> DeathsOf(ProcessWorld& counted, std::initializer_list<int> victims,
                                   uint64_t most,
                                   const std::function<bool(std::string_view)>& admits) {
  std::vector<Death> deaths;
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    if (!admits(fault::kPoints[point])) continue;
    for (const int victim : victims) {
      const uint64_t times = std::min<uint64_t>(counted.report(victim).counters[point], most);
      for (uint64_t hit = 1; hit <= times; ++hit) deaths.push_back({victim, point, hit});
    }
  }
  return deaths;
}

// Leaves `count` of them, drawn at random.
template <typename Case>
void KeepAtRandom(size_t count, std::vector<Case>* cases) {
  Rng rng(TestSeed());
  for (size_t i = 0; i < count; ++i) {
    std::swap((*cases)[i], (*cases)[i + rng.Below(cases->size() - i)]);
  }
  cases->resize(count);
}

// Each case in a world of its own, several at a time.
template <typename Case>
void Sweep(const std::vector<Case>& cases, int nranks, size_t at_once,
           const std::function<int(const Side&, const Case&)>& body,
           const std::function<void(const Case&, ProcessWorld&)>& check) {
  ::testing::Test::RecordProperty("cases", static_cast<int>(cases.size()));
  RunWorlds(
      cases.size(), at_once,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = nranks}, [&](const Side& side) { return body(side, cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) { check(cases[i], world); });
}

// The victim was killed, the others have exited; `judge` looks at what each of these reports.
inline void ExpectOneDeath(ProcessWorld& world, int nranks, int victim,
                           const std::function<void(int rank, const Report&)>& judge) {
  const std::vector<RankEnd>& ends = world.Wait();
  for (int rank = 0; rank < nranks; ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_TRUE(end.Killed(SIGKILL)) << "rank " << rank << " " << end.Describe();
      continue;
    }
    EXPECT_TRUE(end.Exited()) << "rank " << rank << " " << end.Describe();
    judge(rank, world.report(rank));
  }
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAULTS_SWEEP_H_
