// SPDX-License-Identifier: Apache-2.0
//
// Collectives over RDMA between threads, over devices of this process: exact results, the bits of
// loopback for codecs, and a connection that fails in the middle of a call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
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
      const Route loopback{.algorithm = algorithm, .slice_bytes = "8192"};
      Route verbs = loopback;
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

// Memory of a caller: ordinary, of ccl_mem_alloc, or ordinary and registered.
enum class Memory { kOrdinary, kAllocated, kRegistered };

class CallerBuffer {
 public:
  CallerBuffer(Memory memory, size_t count, ccl_comm_t comm) : comm_(comm) {
    void* data = nullptr;
    if (memory == Memory::kAllocated) {
      EXPECT_EQ(ccl_mem_alloc(&data, count * sizeof(float)), CCL_SUCCESS);
      allocated_ = data;
      data_ = static_cast<float*>(data);
      return;
    }
    own_.resize(count);
    data_ = own_.data();
    if (memory == Memory::kOrdinary) return;
    EXPECT_EQ(ccl_comm_register(comm, data_, count * sizeof(float), &handle_), CCL_SUCCESS);
    EXPECT_NE(handle_, nullptr);
  }
  ~CallerBuffer() {
    if (handle_ != nullptr) {
      EXPECT_EQ(ccl_comm_deregister(comm_, handle_), CCL_SUCCESS);
    }
    EXPECT_EQ(ccl_mem_free(allocated_), CCL_SUCCESS);
  }
  CallerBuffer(const CallerBuffer&) = delete;
  CallerBuffer& operator=(const CallerBuffer&) = delete;
  float* data() const { return data_; }

 private:
  ccl_comm_t comm_;
  std::vector<float> own_;
  float* data_ = nullptr;
  void *allocated_ = nullptr, *handle_ = nullptr;
};

// The bits of a call do not depend on whether the device sends from the caller's memory. The
// two-shot algorithm registers memory of ccl_mem_alloc; the others use what is registered.
TEST_P(VerbsCollectivesTest, RegisteredMemoryIsSentInPlaceWithTheSameBits) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 300'000;  // ccl_mem_alloc shares pieces of a megabyte
  const Vectors inputs = MakeInputs(kRanks, kCount, TestSeed());
  for (const char* algorithm : {"direct_two_shot", "ring"}) {
    const bool two_shot = std::string(algorithm) == "direct_two_shot";
    const ScopedEnv env(
        {{"INCCL_TRANSPORT", "verbs"}, {"INCCL_ALGO", algorithm}, {"INCCL_SLICE_BYTES", "65536"}});
    Vectors expected[7];
    for (const Memory memory : {Memory::kOrdinary, Memory::kAllocated, Memory::kRegistered}) {
      SCOPED_TRACE(fmt::format("{}, memory {}", algorithm, static_cast<int>(memory)));
      fake_verbs::Get().ResetCounters();
      Vectors outputs[std::size(expected)];
      for (Vectors& of_call : outputs) of_call.resize(kRanks);
      RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
        const auto r = static_cast<size_t>(rank);
        const CallerBuffer send(memory, kCount, comm), recv(memory, kCount, comm);
        ccl_redop_t scaled = CCL_SUM;
        float factor = 0.3f + static_cast<float>(rank);
        ASSERT_EQ(ccl_redop_create_premulsum(&scaled, &factor, CCL_FLOAT32,
                                             CCL_SCALAR_HOST_IMMEDIATE, comm),
                  CCL_SUCCESS);
        const auto run = [&](size_t call) {
          float* const in = send.data();
          float* const out = call == 1 ? in : recv.data();
          switch (call) {
            case 0:
            case 1: return ccl_allreduce(in, out, kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr);
            case 2: return ccl_allreduce(in, out, kCount, CCL_FLOAT32, CCL_AVG, comm, nullptr);
            case 3: return ccl_allreduce(in, out, kCount, CCL_FLOAT32, scaled, comm, nullptr);
            case 4:
              return ccl_reduce_scatter(in, out, kCount / kRanks, CCL_FLOAT32, CCL_AVG, comm,
                                        nullptr);
            case 5: return ccl_broadcast(in, out, kCount, CCL_FLOAT32, 1, comm, nullptr);
            default: {
              const ccl_result_t begun = ccl_group_start();
              if (begun != CCL_SUCCESS) return begun;
              (void)ccl_send(in, kCount, CCL_FLOAT32, (rank + 1) % kRanks, comm, nullptr);
              (void)ccl_recv(out, kCount, CCL_FLOAT32, (rank + 2) % kRanks, comm, nullptr);
              return ccl_group_end();
            }
          }
        };
        for (size_t call = 0; call < std::size(outputs); ++call) {
          std::copy(inputs[r].begin(), inputs[r].end(), send.data());
          std::fill(recv.data(), recv.data() + kCount, 0.0f);
          ASSERT_EQ(run(call), CCL_SUCCESS) << ccl_get_last_error(comm);
          const float* const out = call == 1 ? send.data() : recv.data();
          outputs[call][r].assign(out, out + kCount);
          std::fill(send.data(), send.data() + kCount, -1.0f);  // nothing reads it any more
        }
      });
      const uint64_t gathered = fake_verbs::Get().Count().gathered;
      EXPECT_EQ(gathered > 0,
                memory == Memory::kRegistered || (memory == Memory::kAllocated && two_shot));
      EXPECT_EQ(fake_verbs::Get().Count().stale, 0u);
      for (size_t call = 0; call < std::size(outputs); ++call) {
        if (memory == Memory::kOrdinary) expected[call] = outputs[call];
        for (size_t rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(Differences(expected[call][rank], outputs[call][rank]), 0u)
              << "call " << call << ", rank " << rank;
        }
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

// The rank whose device cannot read its memory says so itself, and the others name that rank.
TEST_P(VerbsCollectivesTest, AFaultOfTheOwnDeviceIsNamedByEveryRank) {
  const ScopedEnv env({{"INCCL_TRANSPORT", "verbs"}, {"INCCL_SLICE_BYTES", "4096"}});
  constexpr int kRanks = 3;
  std::vector<std::string> texts(kRanks);
  std::vector<ccl_result_t> results(kRanks, CCL_SUCCESS);
  std::vector<ccl_comm_t> comms(kRanks);
  ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(20000, 1.0f);
      for (int call = 0; results[rank] == CCL_SUCCESS; ++call) {
        if (rank == 0 && call == 5) fake_verbs::Get().FailNextSend(IBV_WC_LOC_PROT_ERR, false);
        results[rank] = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_MAX,
                                      comms[rank], nullptr);
      }
      texts[rank] = ccl_get_last_error(comms[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Any rank's slice may be the next one. The others have its code and text.
  const auto cause_of = [](size_t rank) {
    return fmt::format("rank {}: verbs: fake0:1: it cannot send the slot", rank);
  };
  size_t own = 0;
  while (own + 1 < kRanks && texts[own].find(cause_of(own)) == std::string::npos) ++own;
  const std::string cause = cause_of(own);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(results[rank], CCL_SYSTEM_ERROR);
    EXPECT_NE(texts[rank].find(cause), std::string::npos) << texts[rank];
    EXPECT_EQ(texts[rank].find("is lost"), std::string::npos) << texts[rank];
    EXPECT_EQ(ccl_comm_destroy(comms[rank]), CCL_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, VerbsCollectivesTest, ::testing::Bool(), [](const auto& of) {
  return of.param ? "devices_with_a_thread" : "devices_at_once";
});

}  // namespace
}  // namespace inccl::test
