// SPDX-License-Identifier: Apache-2.0
//
// Communicators whose ranks share the work of a call among threads (INCCL_THREADS): results have
// the bits of one thread, with all kinds of buffers, from streams, and after an abort the threads
// are gone.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "api/check.h"
#include "base/rng.h"
#include "integration/compressed_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// The threads that teams of this process have started.
size_t Helpers() {
  size_t helpers = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "inccl-team") ++helpers;
  }
  return helpers;
}

// Odd, and enough for slices of several parts; without a sanitizer also for two windows.
constexpr size_t kCount = (kSanitized ? 1 << 17 : 1 << 20) + 70'001;

void ExpectSame(const Outcome& one, const Outcome& many, const std::string& what) {
  for (size_t r = 0; r < one.outputs.size(); ++r) {
    EXPECT_EQ(Differences(one.outputs[r], many.outputs[r]), 0u) << what << ", rank " << r;
    EXPECT_EQ(one.stats[r].payload_bytes, many.stats[r].payload_bytes) << what;
    EXPECT_EQ(one.stats[r].error_bound, many.stats[r].error_bound) << what;
  }
}

TEST(CallTeams, CompressedCallsHaveTheBitsOfOneThread) {
  const uint64_t seed = TestSeed();
  uint64_t calls = 0;
  for (const int n : {2, 4}) {
    const size_t count = kCount / (n == 2 ? 1 : 2);
    const Vectors inputs = MakeInputs(n, count - count % static_cast<size_t>(n), seed);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const char* spec :
           {"hbi:bits=6", "hbi:bits=4,checksum=1", "hbi:bits=3,code=entropy", "bf16"}) {
        const uint64_t random = Mix64(seed + ++calls);
        const char* const transport = random % 2 == 0 ? "loopback" : "shm";
        const bool in_place = random / 2 % 2 == 0;
        const CallOptions options{.spec = spec, .seed = seed, .in_place = in_place};
        const char* const algorithm = collective == Collective::kAllReduce ? "direct_two_shot" : "";
        const Route way{.algorithm = algorithm, .slice_bytes = "262144", .transport = transport};
        const Outcome one = RunCompressed(collective, inputs, options, way);
        const ScopedEnv threads({{"INCCL_THREADS", "3"}});
        const Outcome many = RunCompressed(collective, inputs, options, way);
        ExpectSame(one, many, std::string(Name(collective)) + " " + spec + " " + transport);
      }
    }
  }
}

TEST(CallTeams, RingsAndTrees) {
  const Vectors inputs = MakeInputs(4, 300'001, TestSeed());
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct_one_shot"}) {
    const Route way{.algorithm = algorithm};
    const Outcome one = RunCompressed(Collective::kAllReduce, inputs, {}, way);
    const ScopedEnv threads({{"INCCL_THREADS", "3"}});
    ExpectSame(one, RunCompressed(Collective::kAllReduce, inputs, {}, way), algorithm);
  }
}

int64_t Value(int rank, size_t i, uint64_t turn) {
  return static_cast<int64_t>(Mix64(turn * 8 + static_cast<uint64_t>(rank) + i * 64) % 100'000);
}
int64_t Sum(int n, size_t i, uint64_t turn) {
  int64_t sum = 0;
  for (int rank = 0; rank < n; ++rank) sum += Value(rank, i, turn);
  return sum;
}

void Fill(int64_t* data, size_t count, int rank, uint64_t turn) {
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i, turn);
}
size_t WrongSums(const int64_t* data, size_t count, int n, uint64_t turn) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += data[i] != Sum(n, i, turn) ? 1 : 0;
  return wrong;
}

// Sums of integers, in ordinary and in registered buffers, which peers read in place.
TEST(CallTeams, UncompressedSumsAreExact) {
  constexpr size_t kElements = 200'003, kBytes = kElements * sizeof(int64_t);
  const ScopedEnv env({{"INCCL_THREADS", "3"}});
  for (const char* transport : {"loopback", "shm", "tcp"}) {
    const ScopedEnv with({{"INCCL_TRANSPORT", transport}});
    for (const int n : {2, 4}) {
      std::atomic<size_t> helpers{0};
      RunThreads(n, [&](int rank, ccl_comm_t comm) {
        void* memory[2] = {};
        for (void*& one : memory) CHECK_OK(ccl_mem_alloc(&one, kBytes));
        std::vector<int64_t> ordinary(kElements), result(kElements);
        for (uint64_t turn = 0; turn < 4; ++turn) {
          auto* const send = turn % 2 == 0 ? ordinary.data() : static_cast<int64_t*>(memory[0]);
          auto* const recv = turn == 3  ? send
                             : turn < 2 ? result.data()
                                        : static_cast<int64_t*>(memory[1]);
          Fill(send, kElements, rank, turn);
          CHECK_OK(ccl_allreduce(send, recv, kElements, CCL_INT64, CCL_SUM, comm, nullptr));
          EXPECT_EQ(WrongSums(recv, kElements, n, turn), 0u) << transport << " turn " << turn;
        }
        helpers = std::max(helpers.load(), Helpers());
        for (void* one : memory) CHECK_OK(ccl_mem_free(one));
      });
      EXPECT_GE(helpers.load(), 2u) << "the calls were too small";
      EXPECT_EQ(Helpers(), 0u) << "after the communicators";
    }
  }
}

// Two communicators, one stream each, from the same thread.
TEST(CallTeams, TwoStreams) {
  constexpr size_t kElements = 150'001;
  const ScopedEnv env({{"INCCL_THREADS", "3"}});
  RunThreads(2, [&](int rank, ccl_comm_t comm) {
    ccl_comm_t other = nullptr;
    CHECK_OK(ccl_comm_split(comm, 0, rank, &other, nullptr));
    const ccl_comm_t comms[2] = {comm, other};
    ccl_stream_t streams[2] = {};
    std::vector<int64_t> data[2];
    for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
    for (uint64_t turn = 0; turn < 5; ++turn) {
      for (size_t s = 0; s < 2; ++s) {
        data[s].resize(kElements);
        Fill(data[s].data(), kElements, rank, 2 * turn + s);
        CHECK_OK(ccl_allreduce(data[s].data(), data[s].data(), kElements, CCL_INT64, CCL_SUM,
                               comms[s], streams[s]));
      }
      for (size_t s = 0; s < 2; ++s) {
        CHECK_OK(ccl_stream_synchronize(streams[s]));
        EXPECT_EQ(WrongSums(data[s].data(), kElements, 2, 2 * turn + s), 0u);
      }
    }
    for (ccl_stream_t stream : streams) CHECK_OK(ccl_stream_destroy(stream));
    CHECK_OK(ccl_comm_destroy(other));
  });
}

// A rank aborts while calls are under way: they end with errors, and so do the helpers.
TEST(CallTeams, AbortDuringCalls) {
  const ScopedEnv env({{"INCCL_THREADS", "3"}});
  for (int turn = 0; turn < 5; ++turn) {
    constexpr size_t kRanks = 3;
    std::vector<ccl_comm_t> comms(kRanks);
    ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS);
    std::atomic<int> calls{0};
    std::vector<ccl_result_t> results(kRanks, CCL_SUCCESS);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        std::vector<float> data(600'000, 1.0f);
        while (results[r] == CCL_SUCCESS) {
          results[r] = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_AVG,
                                     comms[r], nullptr);
          calls.fetch_add(1);
        }
      });
    }
    while (calls.load() < 6) std::this_thread::yield();
    EXPECT_EQ(ccl_comm_abort(comms[0]), CCL_SUCCESS);
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(results[0] == CCL_REMOTE_ERROR || results[0] == CCL_INVALID_ARGUMENT);
    for (size_t r = 1; r < kRanks; ++r) {
      EXPECT_EQ(results[r], CCL_REMOTE_ERROR);
      EXPECT_EQ(ccl_comm_abort(comms[r]), CCL_SUCCESS);
    }
    EXPECT_EQ(Helpers(), 0u);
  }
}

// A wrong number is an error that names the variable.
TEST(CallTeams, TheVariableIsChecked) {
  const ScopedEnv env({{"INCCL_THREADS", "65"}});
  ccl_comm_t comm = nullptr;
  EXPECT_EQ(ccl_comm_init_all(&comm, 1, nullptr), CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("INCCL_THREADS"), std::string::npos);
}

}  // namespace
}  // namespace inccl::test
