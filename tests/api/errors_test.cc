// SPDX-License-Identifier: Apache-2.0
//
// Bad input and bad company: every wrong argument is named and harmless, ranks that make different
// calls all learn who differs, the death of a rank ends the others' calls, and nothing hangs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "api/world.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sanitizers and a loaded machine slow everything down; what must not happen is a hang.
constexpr double kLimit = kSanitized ? 10 : 2;

void ExpectInvalid(ccl_result_t result, ccl_comm_t comm, const std::string& argument) {
  EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(argument), std::string::npos)
      << "\"" << ccl_get_last_error(nullptr) << "\" does not name " << argument;
  ccl_result_t sticky = CCL_INTERNAL_ERROR;
  if (comm != nullptr) {
    EXPECT_EQ(ccl_comm_get_async_error(comm, &sticky), CCL_SUCCESS);
    EXPECT_EQ(sticky, CCL_SUCCESS);
  }
}

TEST(ArgumentsTest, EveryBadArgumentIsNamedAndHarmless) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    std::vector<float> a(64, 1.0f), b(64);
    const size_t n = a.size();
    auto type = [](int v) { return static_cast<ccl_datatype_t>(v); };
    auto op = [](int v) { return static_cast<ccl_redop_t>(v); };
    ExpectInvalid(ccl_allreduce(nullptr, b.data(), n, CCL_FLOAT32, CCL_SUM, comm, nullptr), comm,
                  "send");
    ExpectInvalid(ccl_allreduce(a.data(), nullptr, n, CCL_FLOAT32, CCL_SUM, comm, nullptr), comm,
                  "recv");
    ExpectInvalid(
        ccl_allreduce(a.data(), b.data(), SIZE_MAX / 2, CCL_FLOAT32, CCL_SUM, comm, nullptr), comm,
        "count");
    ExpectInvalid(ccl_allgather(a.data(), b.data(), SIZE_MAX / 8, CCL_FLOAT32, comm, nullptr), comm,
                  "count");
    ExpectInvalid(ccl_allreduce(a.data(), b.data(), n, type(12), CCL_SUM, comm, nullptr), comm,
                  "type");
    ExpectInvalid(ccl_allreduce(a.data(), b.data(), n, type(-1), CCL_SUM, comm, nullptr), comm,
                  "type");
    ExpectInvalid(ccl_allreduce(a.data(), b.data(), n, CCL_FLOAT32, op(5), comm, nullptr), comm,
                  "op");
    ExpectInvalid(ccl_allreduce(a.data(), b.data(), n, CCL_FLOAT32, op(-1), comm, nullptr), comm,
                  "op");
    ExpectInvalid(ccl_broadcast(a.data(), b.data(), n, CCL_FLOAT32, 2, comm, nullptr), comm,
                  "root");
    ExpectInvalid(ccl_reduce(a.data(), b.data(), n, CCL_FLOAT32, CCL_SUM, -1, comm, nullptr), comm,
                  "root");
    ExpectInvalid(ccl_allreduce(a.data(), a.data() + 1, n - 1, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                  comm, "overlap");
    ExpectInvalid(
        ccl_allgather(a.data() + 32 * (1 - rank), a.data(), 32, CCL_FLOAT32, comm, nullptr), comm,
        "overlap");
    alignas(16) char local[64] = {};
    ExpectInvalid(ccl_allreduce(a.data(), b.data(), n, CCL_FLOAT32, CCL_SUM, comm,
                                reinterpret_cast<ccl_stream_t>(&local)),
                  comm, "stream");
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.residual = reinterpret_cast<ccl_residual_t>(&local);
    ExpectInvalid(ccl_allreduce_compressed(a.data(), b.data(), n, CCL_FLOAT32, CCL_SUM,
                                           &compression, comm, nullptr),
                  comm, "residual");
    ExpectInvalid(
        ccl_allreduce_reduced(a.data(), b.data(), reinterpret_cast<ccl_reducer_state_t>(&local),
                              CCL_SUM, nullptr, comm, nullptr),
        comm, "state");
    compression = CCL_COMPRESSION_INIT;
    compression.size = 0;
    ExpectInvalid(ccl_allreduce_compressed(a.data(), b.data(), n, CCL_FLOAT32, CCL_SUM,
                                           &compression, comm, nullptr),
                  comm, "size");
    compression = CCL_COMPRESSION_INIT;
    compression.residual = reinterpret_cast<ccl_residual_t>(&local);
    ExpectInvalid(ccl_reduce_scatter_compressed(a.data(), b.data(), n / 2, CCL_FLOAT32, CCL_SUM,
                                                &compression, comm, nullptr),
                  comm, "residual");
    ExpectInvalid(ccl_allgather_compressed(a.data(), b.data(), n / 2, CCL_FLOAT32, &compression,
                                           comm, nullptr),
                  comm, "residual");
    ExpectInvalid(ccl_reduce_scatter_compressed(a.data(), a.data() + 32 * (1 - rank), 32,
                                                CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr),
                  comm, "overlap");
    ExpectInvalid(ccl_reduce_scatter_compressed(a.data(), b.data(), n / 2, CCL_FLOAT32, op(-1),
                                                nullptr, comm, nullptr),
                  comm, "op");
    ExpectInvalid(ccl_allgather_compressed(a.data() + 32 * (1 - rank), a.data(), 32, CCL_FLOAT32,
                                           nullptr, comm, nullptr),
                  comm, "overlap");
    ExpectInvalid(
        ccl_allgather_compressed(nullptr, b.data(), 32, CCL_FLOAT32, nullptr, comm, nullptr), comm,
        "send");
    // Nothing of the above took a place in the order of calls.
    ASSERT_EQ(ccl_allreduce(a.data(), b.data(), n, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_SUCCESS);
    EXPECT_EQ(b[63], 2.0f);
  });
}

TEST(ArgumentsTest, NullHandlesAndQueries) {
  int value = 0;
  ccl_result_t error = CCL_SUCCESS;
  float x = 0;
  ExpectInvalid(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, nullptr, nullptr), nullptr, "comm");
  ExpectInvalid(ccl_comm_count(nullptr, &value), nullptr, "comm");
  ExpectInvalid(ccl_comm_get_async_error(nullptr, &error), nullptr, "comm");
  ExpectInvalid(ccl_get_unique_id(nullptr), nullptr, "id");
  ExpectInvalid(ccl_get_version(nullptr), nullptr, "version");
  EXPECT_EQ(ccl_comm_destroy(nullptr), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_abort(nullptr), CCL_SUCCESS);
  ExpectInvalid(ccl_comm_finalize(nullptr), nullptr, "comm");
  EXPECT_EQ(ccl_codec_destroy(nullptr), CCL_SUCCESS);
  ccl_comm_t comm = nullptr;
  ccl_unique_id_t id{};
  ExpectInvalid(ccl_comm_init_rank(&comm, 0, id, 0), nullptr, "nranks");
  ExpectInvalid(ccl_comm_init_rank(&comm, 4097, id, 0), nullptr, "nranks");
  ExpectInvalid(ccl_comm_init_rank(&comm, 4, id, 4), nullptr, "rank");
  ExpectInvalid(ccl_comm_init_rank(&comm, 4, id, -1), nullptr, "rank");
  ExpectInvalid(ccl_comm_init_rank(&comm, 4, id, 1), nullptr, "id");
  ExpectInvalid(ccl_comm_init_all(nullptr, 2, nullptr), nullptr, "comms");
  for (int code = 0; code <= 8; ++code) {
    EXPECT_GT(std::string(ccl_get_error_string(static_cast<ccl_result_t>(code))).size(), 3u);
  }
}

TEST(ArgumentsTest, CodecSpecsNameWhatIsWrong) {
  ccl_codec_t codec = nullptr;
  const std::pair<const char*, const char*> bad[] = {
      {"", "codec"},
      {"zip", "zip"},
      {"hbi:bits=6,bits=7", "bits"},
      {"hbi:bits=x", "bits"},
      {"hbi:bits=6.01", "bits"},
      {"hbi:bits=-1", "bits"},
      {"hbi:bits=99", "bits"},
      {"hbi:k=15,bits=6", "k"},
      {"hbi:k=40000", "k"},
      {"hbi:nonsense=1", "nonsense"},
      {"hbi:ref=star", "ref"},
      {"hbi:ag=maybe", "ag"},
      {"hbi:m=1", "m=1"},
      {"hbi:min_bytes=-3", "min_bytes"},
      {"hbi:bits", "bits"},
      {"none:x=1", "x"},
  };
  for (const auto& [spec, word] : bad) {
    EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_INVALID_ARGUMENT) << spec;
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(word), std::string::npos)
        << spec << ": " << ccl_get_last_error(nullptr);
  }
  ASSERT_EQ(ccl_codec_create(&codec, "hbi:bits=6"), CCL_SUCCESS);
  char text[512], again[512];
  ASSERT_EQ(ccl_codec_spec(codec, text, sizeof text), CCL_SUCCESS);
  ExpectInvalid(ccl_codec_spec(codec, text + 256, 3), nullptr, "size");
  ccl_codec_t same = nullptr;
  ASSERT_EQ(ccl_codec_create(&same, text), CCL_SUCCESS) << "the canonical form must parse";
  ASSERT_EQ(ccl_codec_spec(same, again, sizeof again), CCL_SUCCESS);
  EXPECT_STREQ(text, again);
  double bits = 0, bound = 0;
  EXPECT_EQ(ccl_codec_bound(codec, 1000, 4, &bits, &bound), CCL_SUCCESS);
  EXPECT_DOUBLE_EQ(bits, 6.0);
  EXPECT_GT(bound, 0.0);
  ccl_codec_destroy(codec);
  ccl_codec_destroy(same);
}

struct Difference {
  const char* name;
  std::function<ccl_result_t(ccl_comm_t)> usual, odd;
  const char* word;  // in the text
};

std::vector<float>& Scratch() {
  thread_local std::vector<float> memory(1 << 20);
  return memory;
}

ccl_result_t Sum(ccl_comm_t comm, size_t count, ccl_datatype_t type, ccl_redop_t op) {
  return ccl_allreduce(Scratch().data(), Scratch().data(), count, type, op, comm, nullptr);
}

ccl_result_t Compressed(ccl_comm_t comm, const char* spec, uint64_t seed, uint64_t step) {
  ccl_codec_t codec = nullptr;
  EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS);
  ccl_compression_t options = CCL_COMPRESSION_INIT;
  options.codec = codec;
  options.seed = seed;
  options.step = step;
  const ccl_result_t result = ccl_allreduce_compressed(
      Scratch().data(), Scratch().data(), 5000, CCL_FLOAT32, CCL_SUM, &options, comm, nullptr);
  ccl_codec_destroy(codec);
  return result;
}

std::vector<Difference> Differences() {
  auto usual = [](ccl_comm_t c) { return Sum(c, 1000, CCL_FLOAT32, CCL_SUM); };
  auto large = [](ccl_comm_t c) { return Sum(c, 500000, CCL_FLOAT32, CCL_SUM); };
  auto hbi = [](ccl_comm_t c) { return Compressed(c, "hbi:bits=6", 1, 1); };
  return {
      {"CountSmall", usual, [](ccl_comm_t c) { return Sum(c, 1001, CCL_FLOAT32, CCL_SUM); },
       "1001"},
      {"CountZero", usual, [](ccl_comm_t c) { return Sum(c, 0, CCL_FLOAT32, CCL_SUM); }, "count=0"},
      {"CountLarge", large, [](ccl_comm_t c) { return Sum(c, 500001, CCL_FLOAT32, CCL_SUM); },
       "500001"},
      {"SmallAgainstLarge", usual, large, "500000"},
      {"Type", usual, [](ccl_comm_t c) { return Sum(c, 1000, CCL_INT32, CCL_SUM); }, "int32"},
      {"Op", usual, [](ccl_comm_t c) { return Sum(c, 1000, CCL_FLOAT32, CCL_MAX); }, "max"},
      {"Collective", usual,
       [](ccl_comm_t c) {
         return ccl_broadcast(Scratch().data(), Scratch().data(), 1000, CCL_FLOAT32, 0, c, nullptr);
       },
       "broadcast"},
      {"Root",
       [](ccl_comm_t c) {
         return ccl_reduce(Scratch().data(), Scratch().data(), 9000, CCL_FLOAT32, CCL_SUM, 0, c,
                           nullptr);
       },
       [](ccl_comm_t c) {
         return ccl_reduce(Scratch().data(), Scratch().data(), 9000, CCL_FLOAT32, CCL_SUM, 1, c,
                           nullptr);
       },
       "root=1"},
      {"CompressedOrNot", hbi, [](ccl_comm_t c) { return Sum(c, 5000, CCL_FLOAT32, CCL_SUM); },
       "hbi"},
      {"Codec", hbi, [](ccl_comm_t c) { return Compressed(c, "hbi:bits=5", 1, 1); }, "bits=5"},
      {"Seed", hbi, [](ccl_comm_t c) { return Compressed(c, "hbi:bits=6", 77, 1); }, "seed=77"},
      {"SegmentCount",
       [](ccl_comm_t c) {
         return ccl_alltoall(Scratch().data(), Scratch().data() + 500000, 9000, CCL_FLOAT32, c,
                             nullptr);
       },
       [](ccl_comm_t c) {
         return ccl_alltoall(Scratch().data(), Scratch().data() + 500000, 9001, CCL_FLOAT32, c,
                             nullptr);
       },
       "alltoall(count=9001"},
      {"RootOfGather",
       [](ccl_comm_t c) {
         return ccl_gather(Scratch().data(), Scratch().data() + 500000, 9000, CCL_FLOAT32, 0, c,
                           nullptr);
       },
       [](ccl_comm_t c) {
         return ccl_gather(Scratch().data(), Scratch().data() + 500000, 9000, CCL_FLOAT32, 1, c,
                           nullptr);
       },
       "root=1"},
      {"Step", hbi, [](ccl_comm_t c) { return Compressed(c, "hbi:bits=6", 1, 78); }, "step=78"},
  };
}

// The odd rank makes another call. All ranks must get CCL_INVALID_USAGE from this call or from the
// next one (a rank may have returned already), with the two ranks and both calls in the text.
void ExpectDisagreement(const Difference& d, int n, int odd, int rank, ccl_comm_t comm) {
  ASSERT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_SUCCESS);
  const auto start = Clock::now();
  ccl_result_t result = rank == odd ? d.odd(comm) : d.usual(comm);
  for (int i = 0; i < 3 && result == CCL_SUCCESS; ++i) result = Sum(comm, 11, CCL_FLOAT32, CCL_SUM);
  EXPECT_EQ(result, CCL_INVALID_USAGE) << ccl_get_last_error(comm);
  EXPECT_LT(SecondsSince(start), kLimit);
  const std::string text = ccl_get_last_error(comm);
  EXPECT_NE(text.find("rank " + std::to_string(odd) + "/" + std::to_string(n)), std::string::npos)
      << text;
  const size_t first = text.find(" calls ");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_NE(text.find(" calls ", first + 1), std::string::npos) << "both calls: " << text;
  EXPECT_NE(text.find(d.word), std::string::npos) << text;
  EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_INVALID_USAGE) << "the error must be sticky";
}

TEST(MismatchTest, ThreadsAllLearnWhoDiffers) {
  for (const Difference& d : Differences()) {
    SCOPED_TRACE(d.name);
    RunThreads(3, [&](int rank, ccl_comm_t comm) { ExpectDisagreement(d, 3, 1, rank, comm); });
  }
}

TEST(MismatchTest, ProcessesAllLearnWhoDiffers) {
  for (const char* transport : TransportSelections()) {
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    for (const Difference& d : Differences()) {
      SCOPED_TRACE(std::string(transport) + " " + d.name);
      RunProcesses(4, [&](int rank, ccl_comm_t comm) { ExpectDisagreement(d, 4, 2, rank, comm); });
    }
  }
}

// Runs all-reduces until one fails; exit code 0 if it failed as it should.
int SurvivorUntilError(int n, int victim, int rank, const ccl_unique_id_t& id, size_t count) {
  ccl_comm_t comm = nullptr;
  if (ccl_comm_init_rank(&comm, n, id, rank) != CCL_SUCCESS) return 10;
  std::vector<float> data(count, 1.0f);
  ccl_result_t result = CCL_SUCCESS;
  Clock::time_point last = Clock::now();
  for (int i = 0; i < 1000000 && result == CCL_SUCCESS; ++i) {
    if (rank == victim && i == 5) raise(SIGKILL);
    last = Clock::now();
    result = ccl_allreduce(data.data(), data.data(), count, CCL_FLOAT32, CCL_MAX, comm, nullptr);
  }
  const std::string text = ccl_get_last_error(comm);
  const std::string peer = "peer " + std::to_string(victim) + "@";
  int code = 0;
  if (result != CCL_REMOTE_ERROR) code = 11;
  if (text.find(peer) == std::string::npos) code = 12;
  if (SecondsSince(last) > kLimit) code = 13;
  if (code != 0) std::fprintf(stderr, "rank %d: result %d, %s\n", rank, result, text.c_str());
  if (ccl_comm_destroy(comm) != CCL_SUCCESS) code = 14;
  return code;
}

void ExpectSurvivorsLearnWhoDied(const char* transport, const char* algorithm, size_t count,
                                 int victim) {
  constexpr int kRanks = 4;
  const ScopedEnv env({{"INCCL_ALGO", algorithm}, {"INCCL_TRANSPORT", transport}});
  SCOPED_TRACE(std::string(transport) + " " + algorithm + " " + std::to_string(count));
  const std::vector<ProcessExit> exits =
      RunRawProcesses(kRanks, 60000, [&](int rank, const ccl_unique_id_t& id) {
        return SurvivorUntilError(kRanks, victim, rank, id, count);
      });
  for (int rank = 0; rank < kRanks; ++rank) {
    const ProcessExit& exit = exits[static_cast<size_t>(rank)];
    EXPECT_FALSE(exit.timed_out) << "rank " << rank;
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(exit.status) && WTERMSIG(exit.status) == SIGKILL);
    } else {
      EXPECT_TRUE(WIFEXITED(exit.status) && WEXITSTATUS(exit.status) == 0)
          << "rank " << rank << " status " << exit.status;
    }
  }
}

TEST(DeathTest, SurvivorsLearnWhoDied) {
  for (const char* transport : TransportSelections()) {
    for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct_two_shot"}) {
      ExpectSurvivorsLearnWhoDied(transport, algorithm, 100, 0);
      ExpectSurvivorsLearnWhoDied(transport, algorithm, 1000000, 2);
    }
  }
}

TEST(DeathTest, PeerThatLeavesWithoutTakingPart) {
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    ASSERT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_SUCCESS);
    if (rank == 1) return;  // destroys its communicator cleanly
    EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_REMOTE_ERROR);
    EXPECT_NE(std::string(ccl_get_last_error(comm)).find("peer 1@"), std::string::npos)
        << ccl_get_last_error(comm);
  });
}

// Whatever has ended it.
TEST(DeathTest, ACommunicatorThatFailedHoldsNothing) {
  const auto lives = [](int times) {
    for (int life = 0; life < times; ++life) {
      std::latch summed(2);  // a revoke also ends the sum of a rank that has not yet returned
      RunThreads(2, [&summed, life](int rank, ccl_comm_t comm) {
        EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_SUCCESS);
        summed.arrive_and_wait();
        switch (life % 3) {
          case 0:  // the ranks differ
            EXPECT_EQ(Sum(comm, rank == 0 ? 5000 : 5001, CCL_FLOAT32, CCL_SUM), CCL_INVALID_USAGE);
            break;
          case 1:  // a rank is late
            if (rank == 0) {
              EXPECT_EQ(ccl_comm_set_timeout(comm, 50), CCL_SUCCESS);
              EXPECT_EQ(Sum(comm, 5000, CCL_FLOAT32, CCL_SUM), CCL_TIMEOUT);
            } else {
              usleep(100000 * kSlowness);
            }
            break;
          default: EXPECT_EQ(ccl_comm_revoke(comm), CCL_SUCCESS);
        }
      });
    }
  };
  for (const char* transport : ThreadTransports()) {
    SCOPED_TRACE(transport);
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    lives(6);  // what the process makes once
    // What leaks grows each time; what the allocator keeps for threads that collide does not.
    std::string grown;
    for (int round = 0; round < 3 && (round == 0 || !grown.empty()); ++round) {
      // asan keeps what is freed
      Baseline baseline(kSanitized ? Baseline::kAnyRss : 4096);
      lives(kSanitized ? 6 : 30);
      grown = baseline.Difference(10);
    }
    EXPECT_EQ(grown, "");
  }
}

TEST(InitTest, MissingRanksAreNamed) {
  const std::vector<ProcessExit> exits =
      RunRawProcesses(4, 30000, [](int rank, const ccl_unique_id_t& id) {
        if (rank == 1 || rank == 3) return 0;
        ccl_config_t config = CCL_CONFIG_INIT;
        config.init_timeout_ms = 1000;
        ccl_comm_t comm = nullptr;
        const ccl_result_t result = ccl_comm_init_rank_config(&comm, 4, id, rank, &config);
        const std::string text = ccl_get_last_error(nullptr);
        if (result != CCL_TIMEOUT || text.find("1, 3") == std::string::npos) {
          std::fprintf(stderr, "rank %d: result %d: %s\n", rank, result, text.c_str());
          return 1;
        }
        return 0;
      });
  for (const ProcessExit& exit : exits) EXPECT_EQ(exit.status, 0);
}

TEST(AbortTest, EndsACallInProgressOnAllRanks) {
  std::vector<ccl_comm_t> comms(3);
  ASSERT_EQ(ccl_comm_init_all(comms.data(), 3, nullptr), CCL_SUCCESS);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {  // rank 2 never comes
    threads.emplace_back([&, rank] {
      std::vector<float> data(1000);
      const ccl_result_t result = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32,
                                                CCL_SUM, comms[static_cast<size_t>(rank)], nullptr);
      failed += result == CCL_REMOTE_ERROR;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = Clock::now();
  EXPECT_EQ(ccl_comm_abort(comms[0]), CCL_SUCCESS);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(SecondsSince(start), kLimit);
  EXPECT_EQ(failed, 2);
  EXPECT_EQ(ccl_comm_destroy(comms[1]), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(comms[2]), CCL_SUCCESS);
}

TEST(WatchdogTest, NoProgressIsATimeout) {
  const ScopedEnv env({{"INCCL_OP_TIMEOUT_MS", "300"}});
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_TIMEOUT);
      return;
    }
    EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_TIMEOUT);
    EXPECT_NE(std::string(ccl_get_last_error(comm)).find("peer 1@"), std::string::npos)
        << ccl_get_last_error(comm);
  });
}

TEST(WatchdogTest, TheLimitCanBeSetLater) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    EXPECT_EQ(ccl_comm_set_timeout(comm, -1), CCL_INVALID_ARGUMENT);
    EXPECT_STREQ(ccl_get_last_error(comm), "op_timeout_ms: -1 is not in [0, 86400000]");
    EXPECT_EQ(ccl_comm_set_timeout(nullptr, 1), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_set_timeout(comm, 0), CCL_SUCCESS);
    if (rank == 1) {  // late until rank 0 gives up, 600 s before the default limit
      ccl_result_t error = CCL_SUCCESS;
      while (ccl_comm_get_async_error(comm, &error) == CCL_SUCCESS && error == CCL_SUCCESS) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_EQ(error, CCL_TIMEOUT);
      return;
    }
    EXPECT_EQ(ccl_comm_set_timeout(comm, 200), CCL_SUCCESS);
    EXPECT_EQ(Sum(comm, 10, CCL_FLOAT32, CCL_SUM), CCL_TIMEOUT);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("(limit 200 ms), waiting for peer 1@"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace inccl::test
