// SPDX-License-Identifier: Apache-2.0
//
// What the tests of faults between hosts share: the hosts, ranks that sum until a call fails, and
// who their errors must name.
#ifndef INCCL_TESTS_FAULTS_NETWORK_FAULTS_H_
#define INCCL_TESTS_FAULTS_NETWORK_FAULTS_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"
#include "world/hosts.h"

namespace inccl::test {

// A protection of the data, and a number of data sockets.
struct NetworkMode {
  const char* security = "auth";
  const char* sockets = "1";
};
inline constexpr NetworkMode kNetworkModes[] = {{"auth", "1"}, {"encrypt", "3"}, {"none", "3"}};

class NetworkFaultTest : public FaultTest {
 protected:
  explicit NetworkFaultTest(const FaultLimits& limits = {}) : FaultTest(limits) {}

  void SetUp() override {
    FaultTest::SetUp();
    const std::string missing = Hosts::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  void TearDown() override {
    worlds_.clear();
    hosts_.reset();
    FaultTest::TearDown();
  }

  void MakeHosts(int count) { hosts_ = std::make_unique<Hosts>(HostsOptions{.count = count}); }
  Hosts& hosts() { return *hosts_; }

  // Worlds run side by side on the same hosts.
  ProcessWorld& Start(int ranks_per_host, const NetworkMode& mode, const ProcessWorld::Body& body,
                      int nranks = 0) {
    const ScopedEnv env(
        {{"INCCL_NET_SECURITY", mode.security}, {"INCCL_SOCKETS_PER_PEER", mode.sockets}});
    worlds_.push_back(std::make_unique<ProcessWorld>(
        WorldOptions{.nranks = nranks == 0 ? ranks_per_host * hosts_->count() : nranks,
                     .deadline_seconds = 60.0 * kSlowness,
                     .baseline = baseline_of_ranks_,
                     .enter = hosts_->Ranks(ranks_per_host)},
        body));
    return *worlds_.back();
  }
  std::vector<std::unique_ptr<ProcessWorld>>& worlds() { return worlds_; }

  // The rendezvous of a creation that failed lives on in the process of rank 0.
  void ExpectFailedCreations() { baseline_of_ranks_ = false; }

  // Until the ranks of all worlds have done so many calls more. A rank may have ended before.
  void AwaitCalls(uint64_t more) {
    std::vector<std::pair<Report*, uint64_t>> goals;
    for (const auto& world : worlds_) {
      for (int rank = 0; rank < world->nranks(); ++rank) {
        goals.emplace_back(&world->report(rank), world->report(rank).calls + more);
      }
    }
    const double limit = Seconds() + 30.0 * kSlowness;
    for (const auto& [report, goal] : goals) {
      while (report->calls < goal && report->result != CCL_REMOTE_ERROR && Seconds() < limit) {
        usleep(500);
      }
      EXPECT_GE(report->calls, goal) << report->text;
    }
  }

  // The rank's call ended within `seconds` with an error that names one of `peers`.
  static void ExpectNames(ProcessWorld& world, int rank, const std::vector<int>& peers,
                          double seconds, int peer_pid = 0) {
    const Report& report = world.report(rank);
    EXPECT_EQ(report.result, CCL_REMOTE_ERROR) << "rank " << rank << ": " << report.text;
    EXPECT_LT(report.seconds, seconds + SlackSeconds()) << report.text;
    EXPECT_EQ(MissingFromError(
                  report.text, CCL_REMOTE_ERROR,
                  {.rank = rank, .nranks = world.nranks(), .peers = peers, .peer_pid = peer_pid}),
              "");
  }

 private:
  const ScopedEnv nic_{{{"INCCL_SOCKET_IFNAME", "e0"}, {"INCCL_TRANSPORT", "shm,tcp"}}};
  bool baseline_of_ranks_ = true;
  std::unique_ptr<Hosts> hosts_;
  std::vector<std::unique_ptr<ProcessWorld>> worlds_;
};

constexpr int kJoined = 1;    // the stage of a rank that has joined
constexpr int kStopped = 99;  // the stage that a test gives rank 0: no further call

inline int SumOfRanks(int nranks) { return nranks * (nranks + 1) / 2; }

// Sums until a call fails or rank 0 is told to stop. Returns false on a wrong sum.
inline bool SumUntilError(const Side& side, ccl_comm_t comm, size_t count = 30000) {
  Report& mine = side.mine();
  std::vector<float> data(count), sum(count);
  for (bool stop = false; !stop;) {
    std::fill(data.begin(), data.end(), static_cast<float>(side.rank() + 1));
    data[0] = side.of(0).stage == kStopped && side.rank() == 0 ? 1.0f : 0.0f;
    const double start = Seconds();
    const ccl_result_t result =
        ccl_allreduce(data.data(), sum.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    mine.seconds = Seconds() - start;
    mine.result = result;
    if (result != CCL_SUCCESS) {
      mine.SetText(ccl_get_last_error(comm));
      return true;
    }
    for (size_t i = 1; i < count; ++i) {
      if (sum[i] != static_cast<float>(SumOfRanks(side.nranks()))) return false;
    }
    ++mine.calls;
    stop = sum[0] != 0;
  }
  return true;
}

// Joins; no fault before all have joined. Exits the process on an error.
inline ccl_comm_t JoinAll(const Side& side) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) {
    std::fprintf(stderr, "%s\n", side.mine().text);
    _exit(10);
  }
  side.mine().stage = kJoined;
  for (int rank = 0; rank < side.nranks(); ++rank) {
    if (!side.Await(rank, kJoined)) _exit(11);
  }
  return comm;
}

// Sums until an error, and ends in an orderly way. `plan`: what happens to the victim.
inline ProcessWorld::Body SummingRanks(int victim = -1, const fault::Plan& plan = {}) {
  return [=](const Side& side) {
    ccl_comm_t comm = JoinAll(side);
    if (side.rank() == victim) fault::Arm(plan);
    if (!SumUntilError(side, comm)) return 13;
    // Ranks that succeed leave together: other tests are about those that leave early.
    side.mine().counters[0] = 1;
    for (int rank = 0; rank < side.nranks() && side.mine().result == CCL_SUCCESS; ++rank) {
      const double limit = Seconds() + 20.0 * kSlowness;
      while (side.of(rank).counters[0] == 0 && Seconds() < limit) usleep(500);
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  };
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAULTS_NETWORK_FAULTS_H_
