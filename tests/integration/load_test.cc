// SPDX-License-Identifier: Apache-2.0
//
// 16 ranks on four hosts (network namespaces), two communicators each, a thread for each of them:
// random collectives, types, reductions, codecs, sizes and streams, every result verified against
// what the draws say. Results of HBI are those of its oracle, bit for bit.
//
// INCCL_TEST_OPERATIONS: operations of each communicator; INCCL_TEST_SECONDS: how long processors
// are scarce (tools/check.sh --long); INCCL_TEST_SEED replays.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/random_operations.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"
#include "world/baseline.h"
#include "world/clock.h"
#include "world/hosts.h"
#include "world/limits.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kHosts = 4, kRanksPerHost = 4, kRanks = kHosts * kRanksPerHost;

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

OperationLimits Limits() {
  return {.most_bytes = 256 << 10,
          .codecs = {"hbi:bits=6", "hbi:bits=4", "bf16", "fp16", "lossless", "fp8", "mxfp8",
                     "onebit", "qsgd:q=8"}};
}

// Sums, compressed, of all ranks' drawn floats, against the oracle. Each rank checks every element.
void ExpectOracle(const Side& side, ccl_comm_t comm, uint64_t seed) {
  constexpr size_t kCount = 3000;
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kCount));
  for (size_t r = 0; r < inputs.size(); ++r) {
    for (size_t i = 0; i < kCount; ++i) {
      inputs[r][i] = static_cast<float>(static_cast<int64_t>(Mix64(seed + 77 * r + i * i)) >> 40);
    }
  }
  const std::vector<float> expected = HbiAllReduce(inputs, {.bits8 = 48, .seed = seed, .step = 1});
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.seed = seed;
  how.step = 1;
  EXPECT_EQ(ccl_codec_create(&how.codec, "hbi:bits=6"), CCL_SUCCESS);
  std::vector<float>& data = inputs[static_cast<size_t>(side.rank())];
  EXPECT_EQ(ccl_allreduce_compressed(data.data(), data.data(), kCount, CCL_FLOAT32, CCL_SUM, &how,
                                     comm, nullptr),
            CCL_SUCCESS)
      << ccl_get_last_error(comm);
  ccl_codec_destroy(how.codec);
  EXPECT_EQ(data, expected) << "seed " << seed;
}

// Whether rank 0 says so; all ranks learn it in the same call.
bool AllStop(ccl_comm_t comm, bool stop) {
  int32_t any = stop ? 1 : 0;
  EXPECT_EQ(ccl_allreduce(&any, &any, 1, CCL_INT32, CCL_MAX, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  return any != 0 || ::testing::Test::HasFailure();
}

// A thread of a rank: `operations` of them, and more in portions until `until`.
void RunOperations(const Side& side, ccl_comm_t comm, uint64_t seed, int operations, double until) {
  constexpr int kPortion = 250;
  ccl_stream_t stream = nullptr;
  EXPECT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
  RandomOperationRunner runner(side.rank(), kRanks, comm, seed, stream, Limits());
  for (int done = 0; !::testing::Test::HasFailure();) {
    ExpectOracle(side, comm, seed + static_cast<uint64_t>(done));
    const int portion = std::min(kPortion, std::max(operations - done, until > 0 ? kPortion : 0));
    EXPECT_EQ(runner.Run(static_cast<uint64_t>(done), static_cast<uint64_t>(portion)), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    done += portion;
    if (AllStop(comm, side.rank() == 0 && done >= operations && Seconds() >= until)) break;
  }
  side.mine().calls += runner.completed();
  EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
}

// Processes that want all processors.
class Spinners {
 public:
  explicit Spinners(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile uint64_t turns = 0;;) turns = turns + 1;
      }
      pids_.push_back(pid);
    }
  }
  ~Spinners() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  Spinners(const Spinners&) = delete;
  Spinners& operator=(const Spinners&) = delete;

 private:
  std::vector<pid_t> pids_;
};

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = Hosts::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    hosts_ = std::make_unique<Hosts>(HostsOptions{.count = kHosts});
  }

  // Of each of the ranks' two communicators.
  void Run(int operations, double seconds) {
    const uint64_t seed = TestSeed();
    const ScopedEnv env({{"INCCL_SOCKET_IFNAME", "e0"}, {"INCCL_TRANSPORT", "shm,tcp"}});
    const double began = Seconds();
    ProcessWorld world(
        {.nranks = kRanks,
         .deadline_seconds = (600.0 + 0.1 * operations) * kSlowness + 3 * seconds,
         .enter = hosts_->Ranks(kRanksPerHost)},
        [&](const Side& side) {
          ccl_comm_t comm = nullptr, other = nullptr;
          if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) {
            std::fprintf(stderr, "%s\n", side.mine().text);
            return 10;
          }
          if (ccl_comm_split(comm, 0, side.rank(), &other, nullptr) != CCL_SUCCESS) return 11;
          const double until = seconds > 0 ? Seconds() + seconds : 0;
          std::thread beside([&] { RunOperations(side, other, seed + 1, operations, until); });
          RunOperations(side, comm, seed, operations, until);
          beside.join();
          return ccl_comm_destroy(other) == CCL_SUCCESS && ccl_comm_destroy(comm) == CCL_SUCCESS
                     ? 0
                     : 12;
        });
    world.ExpectAllExited();
    const uint64_t calls = world.report(0).calls;
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(world.report(rank).calls, calls) << rank;
    EXPECT_GE(calls, 2u * static_cast<uint64_t>(operations));
    fmt::print("{} verified operations of {} ranks in {:.1f} s\n", calls, kRanks,
               Seconds() - began);
  }

 private:
  const Baseline baseline_;
  std::unique_ptr<Hosts> hosts_;
};

TEST_F(LoadTest, MixedOperationsOnFourHosts) {
  Run(FromEnvironment("INCCL_TEST_OPERATIONS", kSanitized ? 100 : 5000), 0);
}

// A rank that gets a processor late is not dead: the dead time is a fifth of the default.
TEST_F(LoadTest, NoRankIsSuspectedWhereProcessorsAreScarce) {
  constexpr int kSpinners = 16;
  const int seconds = FromEnvironment("INCCL_TEST_SECONDS", 0);
  if (seconds == 0) GTEST_SKIP() << "takes all processors from other tests: INCCL_TEST_SECONDS";
  const ScopedEnv env({{"INCCL_DEAD_TIMEOUT_MS", "2000"},
                       {"INCCL_TEST_HEARTBEAT_MS", "200"},
                       {"INCCL_OP_TIMEOUT_MS", "600000"},
                       {"INCCL_INIT_TIMEOUT_MS", "120000"}});
  const Spinners spinners(kSpinners);
  Run(100, seconds);
}

}  // namespace
}  // namespace inccl::test
