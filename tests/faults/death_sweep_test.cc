// SPDX-License-Identifier: Apache-2.0
//
// A rank is killed at every fault point of an operation, for every collective and algorithm. What
// succeeded before was right; the others get an error that names it, in time, from that call or a
// later one; the error stays; they end with what they began with.

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "faults/operation_cases.h"
#include "faults/sweep.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 5000;  // five slices of 4 KiB
constexpr int kCallsCounted = 2, kRegisteredCallsCounted = 60;

bool OfOperation(std::string_view point) {
  return point.starts_with("call.") || point.starts_with("executor.") ||
         point.starts_with("zero_copy.") || point.starts_with("send_recv.") ||
         point.starts_with("progress.");
}

// Only where memory can be shared.
bool OfZeroCopy(size_t point) { return fault::kPoints[point].starts_with("zero_copy."); }

// Waiting ranks pass these before they sleep.
bool OfProgress(size_t point) { return fault::kPoints[point].starts_with("progress."); }
constexpr useconds_t kUsuallySleep = 20000,
                     kSurelySleep = 1500000;  // also where yielding takes long

struct Case {
  Operation operation;
  Death death;
};

ccl_result_t Join(const Side& side, const Operation& operation, ccl_comm_t* comm) {
  ccl_config_t config = CCL_CONFIG_INIT;
  config.algorithm = operation.algorithm;
  const ccl_result_t result = side.Init(comm, config);
  EXPECT_EQ(result, CCL_SUCCESS) << side.mine().text;
  // No rank dies before all have joined: that is another test.
  side.mine().stage = 1;
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 1));
  return result;
}

std::unique_ptr<ProcessWorld> StartCounting(const Operation& operation) {
  return std::make_unique<ProcessWorld>(WorldOptions{.nranks = kRanks}, [=](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (Join(side, operation, &comm) != CCL_SUCCESS) return 10;
    fault::Arm({});
    OperationRunner runner(operation, side.rank(), kRanks, kCount);
    // Peers import regions asynchronously.
    const int calls = operation.registered ? kRegisteredCallsCounted : kCallsCounted;
    for (int i = 0; i < calls; ++i) {
      // The others come to sleep, at least once even where yielding takes long.
      if (i == 1 && side.rank() == 0) {
        usleep(operation.Name() == "allreduce_ring" ? kSurelySleep : kUsuallySleep);
      }
      EXPECT_EQ(runner.Run(comm, 1.0f), CCL_SUCCESS) << ccl_get_last_error(comm);
      EXPECT_TRUE(runner.Right());
    }
    ReportHits(side);
    ccl_comm_destroy(comm);
    return 0;
  });
}

// Every operation over shared memory. What happens after a death differs between transports, and
// not so much between operations: a few of each kind over the others.
std::vector<Operation> OperationsOver(const std::string& transport) {
  if (transport == "shm") return AllOperations();
  return {{"allreduce", "ring"}, {"allreduce", "recursive_doubling", true}, {"sendrecv", nullptr}};
}

// Of each point: the first arrival, the last, and one between, or, over other transports than
// shared memory and under sanitizers, one of them; one victim each, at random.
std::vector<Case> Cases(const std::string& transport) {
  Rng rng(TestSeed());
  const std::vector<Operation> operations = OperationsOver(transport);
  std::vector<Case> cases;
  std::vector<uint64_t> reached(fault::kPointCount);
  const auto add = [&](size_t i, ProcessWorld& world) {
    world.ExpectAllExited();
    uint64_t published = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      published += world.report(rank).counters[fault::IndexOf("zero_copy.after_publish")];
    }
    EXPECT_EQ(published > 0, operations[i].registered) << operations[i].Name();
    for (size_t point = 0; point < fault::kPointCount; ++point) {
      if (!OfOperation(fault::kPoints[point])) continue;
      const auto first = static_cast<int>(rng.Below(kRanks));
      for (int turn = 0; turn < kRanks; ++turn) {  // not all ranks pass all points
        const int victim = (first + turn) % kRanks;
        const uint64_t times = world.report(victim).counters[point];
        if (times == 0) continue;
        reached[point] += times;
        // How often a rank sleeps, and when it imports a region, depends on the moment.
        const bool steady = !OfProgress(point) && !OfZeroCopy(point);
        std::set<uint64_t> hits =
            steady ? std::set<uint64_t>{1, 1 + rng.Below(times), times} : std::set<uint64_t>{1};
        if (transport != "shm" || kSanitized) {
          auto one = hits.begin();
          std::advance(one, rng.Below(hits.size()));
          hits = {*one};
        }
        for (const uint64_t hit : hits) cases.push_back({operations[i], {victim, point, hit}});
        break;
      }
    }
  };
  RunWorlds(
      operations.size(), 2, [&](size_t i) { return StartCounting(operations[i]); }, add);
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    if (OfOperation(fault::kPoints[point]) && (transport == "shm" || !OfZeroCopy(point))) {
      EXPECT_GT(reached[point], 0u) << fault::kPoints[point] << " is not reached";
    }
  }
  if (kSanitized) KeepAtRandom(cases.size() / 3, &cases);  // release has all
  return cases;
}

int Body(const Side& side, const Case& c) {
  ccl_comm_t comm = nullptr;
  if (Join(side, c.operation, &comm) != CCL_SUCCESS) return 10;
  OperationRunner runner(c.operation, side.rank(), kRanks, kCount);
  c.death.Arm(side);
  double start = 0;
  ccl_result_t result = CCL_SUCCESS;
  for (int i = 0; result == CCL_SUCCESS && i < 200000; ++i) {
    if (OfProgress(c.death.point) && side.rank() != c.death.victim && i % 1000 == 1) {
      usleep(i == 1 ? kUsuallySleep : kSurelySleep);
    }
    start = Seconds();
    result = runner.Run(comm, static_cast<float>(i % 100 + 1));
    if (result == CCL_SUCCESS && !runner.Right()) return 13;
  }
  side.mine().seconds = Seconds() - start;
  side.mine().result = result;
  side.mine().SetText(ccl_get_last_error(comm));
  ccl_result_t sticky = CCL_SUCCESS;
  EXPECT_EQ(ccl_comm_get_async_error(comm, &sticky), CCL_SUCCESS);
  EXPECT_EQ(sticky, result);
  start = Seconds();
  EXPECT_EQ(runner.Run(comm, 1.0f), result) << "the error must stay";
  EXPECT_LT(Seconds() - start, SlackSeconds());
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

void Check(const Case& c, ProcessWorld& world) {
  SCOPED_TRACE(c.operation.Name() + " " + c.death.Describe());
  const int victim = c.death.victim;
  ExpectOneDeath(world, kRanks, victim, [&](int rank, const Report& report) {
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << report.text;
    EXPECT_LT(report.seconds, kLocalDeathSeconds + SlackSeconds()) << report.text;
    EXPECT_EQ(
        MissingFromError(
            report.text, CCL_REMOTE_ERROR,
            {.rank = rank, .nranks = kRanks, .peers = {victim}, .peer_pid = world.pid(victim)}),
        "");
  });
}

class DeathSweepTest : public TransportFaultTest {
 private:
  const ScopedEnv slices_{{{"INCCL_SLICE_BYTES", "4096"}}};
};

TEST_P(DeathSweepTest, Row01_ARankIsKilledAtEveryStep) {
  ForRow("1");
  Sweep<Case>(Cases(GetParam()), kRanks, 4, Body, Check);
}
INSTANTIATE_OVER_TRANSPORTS(DeathSweepTest);

}  // namespace
}  // namespace inccl::test
