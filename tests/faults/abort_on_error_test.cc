// SPDX-License-Identifier: Apache-2.0
//
// INCCL_ABORT_ON_ERROR: the first fatal error ends the process, also one that comes while no call
// is under way; a wrong argument, a creation that fails and an end that the caller wants do not.
#include <fmt/format.h>
#include <signal.h>

#include <string>
#include <vector>

#include "faults/fault_test.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 1;
constexpr double kIdleSeconds = 10.0 * kSlowness;  // far longer than anybody needs

class AbortOnErrorTest : public TransportFaultTest {
 private:
  const ScopedEnv abort_{{{"INCCL_ABORT_ON_ERROR", "1"}, {"INCCL_DEBUG", "WARN"}}};
};

ccl_result_t Sum(ccl_comm_t comm) {
  float value = 1;
  return ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

void Idle() {
  for (const double end = Seconds() + kIdleSeconds; Seconds() < end; usleep(10000)) {
  }
}

void ExpectAborted(ProcessWorld* world, int rank, const std::string& why) {
  const RankEnd& end = world->Wait()[static_cast<size_t>(rank)];
  EXPECT_TRUE(end.Killed(SIGABRT)) << "rank " << rank << ": " << end.Describe();
  EXPECT_TRUE(Matches(end.output, why)) << end.output;
}

// What happens while the others are outside the library.
TEST_P(AbortOnErrorTest, Row1_APeerDiesBetweenCalls) {
  ForRow("1");
  for (const bool called : {true, false}) {
    SCOPED_TRACE(called ? "after a call" : "before any call");
    ProcessWorld world({.nranks = kRanks, .baseline = false}, [&](const Side& side) {
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
      if (called && Sum(comm) != CCL_SUCCESS) return 11;
      side.mine().stage = 1;
      if (side.rank() == kVictim) {
        for (const int rank : {0, 2}) side.Await(rank, 1);
        raise(SIGKILL);
      }
      Idle();
      return 13;
    });
    for (const int rank : {0, 2}) {
      ExpectAborted(&world, rank,
                    "INCCL_ABORT_ON_ERROR: (.*: )?rank [02]/3 (before any|after) op.*peer 1@");
    }
  }
}

TEST_P(AbortOnErrorTest, Row1_APeerDiesInACall) {
  ForRow("1");
  ProcessWorld world({.nranks = kRanks, .baseline = false}, [&](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    if (side.rank() == kVictim) {
      usleep(50000);
      raise(SIGKILL);
    }
    (void)Sum(comm);
    return 13;
  });
  for (const int rank : {0, 2}) {
    ExpectAborted(&world, rank, "INCCL_ABORT_ON_ERROR: rank [02]/3 .*peer 1@");
  }
}

// One rank aborts; that is an error of the others alone.
TEST_P(AbortOnErrorTest, Row23_WhoAbortsOnPurposeGoesOn) {
  ForRow("23");
  ProcessWorld world({.nranks = kRanks, .baseline = false}, [&](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    if (Sum(comm) != CCL_SUCCESS) return 11;
    side.mine().stage = 1;
    if (side.rank() == kVictim) {
      for (const int rank : {0, 2}) side.Await(rank, 1);
      return ccl_comm_abort(comm) == CCL_SUCCESS ? 0 : 12;
    }
    Idle();
    return 13;
  });
  EXPECT_TRUE(world.Wait()[kVictim].Exited(0)) << world.Wait()[kVictim].Describe();
  for (const int rank : {0, 2}) {
    ExpectAborted(&world, rank, "peer [0-9]+@.*rank 1/3 aborted the communicator");
  }
}

TEST_P(AbortOnErrorTest, Row14_WhatIsNoErrorOfACommunicatorEndsNoProcess) {
  ForRow("14");
  ProcessWorld world({.nranks = kRanks, .baseline = false}, [&](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    if (ccl_allreduce(nullptr, nullptr, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr) !=
        CCL_INVALID_ARGUMENT) {
      return 11;
    }
    if (Sum(comm) != CCL_SUCCESS) return 12;
    if (ccl_comm_destroy(comm) != CCL_SUCCESS) return 13;
    // No other rank comes.
    ccl_unique_id_t id;
    ccl_config_t config = CCL_CONFIG_INIT;
    config.init_timeout_ms = 200;
    comm = nullptr;
    if (ccl_get_unique_id(&id) != CCL_SUCCESS) return 14;
    return ccl_comm_init_rank_config(&comm, kRanks, id, 0, &config) == CCL_TIMEOUT ? 0 : 15;
  });
  world.ExpectAllExited();
}

INSTANTIATE_OVER_TRANSPORTS(AbortOnErrorTest);

}  // namespace
}  // namespace inccl::test
