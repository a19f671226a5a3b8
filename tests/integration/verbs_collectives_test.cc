// SPDX-License-Identifier: Apache-2.0
//
// Collectives over RDMA between threads, over devices of this process: exact results, the bits of
// loopback for codecs, and a connection that fails in the middle of a call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "api/world.h"
#include "fakes/verbs/fake_verbs.h"
#include "faults/operation_cases.h"
#include "integration/compressed_world.h"
#include "support/seed.h"
#include "world/algorithms.h"

namespace inccl::test {
namespace {

class VerbsCollectivesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    fake_verbs::Machine machine = fake_verbs::Get().StandardMachine();
    machine.in_thread = GetParam();
    machine.seed = TestSeed();
    fake_verbs::Get().SetMachine(machine);
  }
  void TearDown() override {
    EXPECT_EQ(fake_verbs::Get().OpenObjects(), 0u);
    fake_verbs::Get().SetMachine({});  // tests after these do not choose RDMA
  }
};

TEST_P(VerbsCollectivesTest, EveryCollectiveAndAlgorithm) {
  constexpr int kRanks = 5;
  for (const Operation& operation : AllOperations()) {
    const std::string algorithm = operation.algorithm == nullptr ? "" : operation.algorithm;
    const ScopedEnv env({{"INCCL_TRANSPORT", "verbs"},
                         {"INCCL_ALGO", algorithm.c_str()},
                         {"INCCL_SLICE_BYTES", "4096"}});
    SCOPED_TRACE(operation.Name());
    RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
      for (const size_t count : {size_t{3}, size_t{5000}}) {
        OperationRunner runner(operation, rank, kRanks, count);
        for (int call = 0; call < 3; ++call) {
          ASSERT_EQ(runner.Run(comm, 2.0f), CCL_SUCCESS) << ccl_get_last_error(comm);
          EXPECT_TRUE(runner.Right()) << count << ", rank " << rank;
        }
      }
    });
  }
  EXPECT_EQ(fake_verbs::Get().Count().not_ready, 0u);
}

TEST_P(VerbsCollectivesTest, CompressedResultsHaveTheBitsOfLoopback) {
  constexpr int kRanks = 4;
  const Vectors inputs = MakeInputs(kRanks, 40000, TestSeed());
  for (const char* spec : {"hbi:bits=6", "hbi:k=7,k2=15", "bf16", "mxfp8", "qsgd:q=8"}) {
    for (const char* algorithm : {"direct_two_shot", "ring"}) {
      CallOptions options;
      options.spec = spec;
      const Way loopback{.algorithm = algorithm, .slice_bytes = "8192"};
      Way verbs = loopback;
      verbs.transport = "verbs";
      const Outcome one = RunCompressed(Collective::kAllReduce, inputs, options, loopback);
      const Outcome two = RunCompressed(Collective::kAllReduce, inputs, options, verbs);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(Differences(one.outputs[rank], two.outputs[rank]), 0u)
            << spec << " " << algorithm << " rank " << rank;
      }
    }
  }
}

// Every rank learns of it; one of them names the peer, the connection's failure and the port.
TEST_P(VerbsCollectivesTest, AConnectionThatFailsEndsTheCallOnEveryRank) {
  for (const bool port_down : {false, true}) {
    const ScopedEnv env({{"INCCL_TRANSPORT", "verbs"}, {"INCCL_SLICE_BYTES", "4096"}});
    constexpr int kRanks = 3;
    std::vector<std::string> texts(kRanks);
    std::vector<ccl_comm_t> comms(kRanks);
    ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        std::vector<float> data(20000, 1.0f);
        ccl_result_t result = CCL_SUCCESS;
        for (int call = 0; result == CCL_SUCCESS; ++call) {
          if (rank == 0 && call == 5 && port_down) {
            fake_verbs::Get().SetPortState("fake0", 1, IBV_PORT_DOWN);
          } else if (rank == 0 && call == 5) {
            fake_verbs::Get().FailNextSend(IBV_WC_RETRY_EXC_ERR, false);
          }
          result = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_MAX,
                                 comms[r], nullptr);
        }
        EXPECT_EQ(result, CCL_REMOTE_ERROR);
        texts[r] = ccl_get_last_error(comms[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      all += texts[rank] + "\n";
      EXPECT_EQ(ccl_comm_destroy(comms[rank]), CCL_SUCCESS);
    }
    EXPECT_NE(all.find("is lost: transport retry counter exceeded"), std::string::npos) << all;
    EXPECT_EQ(all.find("fake0:1 is DOWN") != std::string::npos, port_down) << all;
    fake_verbs::Get().SetPortState("fake0", 1, IBV_PORT_ACTIVE);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, VerbsCollectivesTest, ::testing::Bool(), [](const auto& of) {
  return of.param ? "devices_with_a_thread" : "devices_at_once";
});

}  // namespace
}  // namespace inccl::test
