// SPDX-License-Identifier: Apache-2.0
//
// Communicators over several hosts, which INCCL_HOSTID fakes on one machine: shm inside a host, ucx
// between hosts, or tcp where there is no UCX. Results are those of one host, errors name ranks of
// any host.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "base/types.h"
#include "integration/collectives_on_hosts.h"
#include "integration/compressed_world.h"
#include "integration/hosts_world.h"
#include "support/seed.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

bool HasNeighbour(const std::string& hosts, int rank) {
  return std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank)]) > 1;
}

constexpr const char* kTransports = INCCL_TEST_UCX != 0 ? "shm+ucx" : "shm+tcp";
constexpr const char* kLayouts[] = {"aabb", "abab", "aab", "abcab"};

class HostsTest : public ::testing::Test {};

std::string Content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Over a slow link payloads are shortened: fewer bytes, the same bits.
TEST_F(HostsTest, SlowLinksShortenPayloads) {
  constexpr size_t kCount = 1 << 21;
  const std::string slow = ::testing::TempDir() + "inccl-slow-" + std::to_string(getpid());
  std::ofstream(slow) << "cost network_byte_ps 17000\n";
  SharedFloats results(4 * kCount), sent(4);
  const uint64_t seed = TestSeed();  // before there are processes
  for (const bool is_slow : {false, true}) {
    const ScopedEnv env({{"INCCL_TUNER_FILE", is_slow ? slow.c_str() : ""}});
    RunHosts("ab", [&](const Side& side, ccl_comm_t comm) {
      const auto place = static_cast<size_t>(side.rank() + (is_slow ? 2 : 0));
      std::mt19937_64 random(seed + static_cast<uint64_t>(side.rank()));
      std::normal_distribution<float> normal;
      std::vector<float> x(kCount);
      for (float& value : x) value = normal(random);
      ccl_codec_t codec = nullptr;
      ASSERT_EQ(ccl_codec_create(&codec, "hbi:bits=4"), CCL_SUCCESS);
      ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.codec = codec;
      how.stats = &stats;
      ASSERT_EQ(ccl_allreduce_compressed(x.data(), results.data() + place * kCount, kCount,
                                         CCL_FLOAT32, CCL_SUM, &how, comm, nullptr),
                CCL_SUCCESS);
      sent.data()[place] = static_cast<float>(stats.payload_bytes);
      ccl_codec_destroy(codec);
    });
  }
  for (const size_t rank : {0, 1}) {
    EXPECT_GT(sent.data()[rank], 0.49 * kCount);
    EXPECT_LT(sent.data()[rank + 2], 0.93 * sent.data()[rank]);
    EXPECT_EQ(std::memcmp(results.data() + rank * kCount, results.data() + (rank + 2) * kCount,
                          kCount * sizeof(float)),
              0);
  }
}

TEST_F(HostsTest, UsesTwoTransports) {
  const std::string log = ::testing::TempDir() + "inccl-hosts-" + std::to_string(getpid());
  const ScopedEnv env({{"INCCL_DEBUG", "INFO"}, {"INCCL_DEBUG_FILE", log.c_str()}});
  const auto exits = RunRawProcesses(3, 60000, [](int rank, const ccl_unique_id_t& id) {
    SetHost("aab", rank);
    ccl_comm_t comm = nullptr;
    if (ccl_comm_init_rank(&comm, 3, id, rank) != CCL_SUCCESS) return 1;
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 2;
  });
  for (const RankEnd& end : exits) EXPECT_TRUE(end.Exited()) << end.Describe();
  const std::string text = Content(log);
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_NE(text.find(std::string("rank ") + rank + "/3 joined over " + kTransports),
              std::string::npos)
        << text;
  }
  std::remove(log.c_str());
}

TEST_F(HostsTest, EveryCollective) {
  const ScopedEnv env({{"INCCL_SLICE_BYTES", "4096"}});
  for (const std::string hosts : kLayouts) {
    SCOPED_TRACE(hosts);
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      for (const size_t count : {1, 777, 20011}) {
        CollectivesOnHosts(side.rank(), Ranks(hosts), comm, count).RunAll();
      }
    });
  }
}

TEST_F(HostsTest, EveryAlgorithm) {
  for (const char* algorithm : {"direct_one_shot", "direct_two_shot", "ring", "tree",
                                "recursive_doubling", "hierarchical"}) {
    for (const char* channels : {"1", "2"}) {
      const ScopedEnv env(
          {{"INCCL_ALGO", algorithm}, {"INCCL_CHANNELS", channels}, {"INCCL_SLICE_BYTES", "4096"}});
      SCOPED_TRACE(std::string(algorithm) + " " + channels);
      for (const std::string hosts : kLayouts) {
        RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
          for (const size_t count : {5, 30011}) {
            CollectivesOnHosts(side.rank(), Ranks(hosts), comm, count).AllReduce();
          }
        });
      }
    }
  }
}

// The collectives that have hierarchical schedules, with buffers that are registered and not.
TEST_F(HostsTest, Hierarchical) {
  for (const char* channels : {"1", "3"}) {
    const ScopedEnv env(
        {{"INCCL_ALGO", "hierarchical;alltoall:direct;gather:direct;scatter:direct"},
         {"INCCL_CHANNELS", channels},
         {"INCCL_SLICE_BYTES", "4096"}});
    for (const std::string hosts : kLayouts) {
      SCOPED_TRACE(hosts + " " + channels);
      RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
        for (const size_t count : {1, 777, 60011}) {
          CollectivesOnHosts(side.rank(), Ranks(hosts), comm, count).RunAll();
        }
      });
    }
  }
}

TEST_F(HostsTest, HierarchicalNeedsAHostOfSeveralRanksAndReproducibleRefusesIt) {
  {
    float x = 1;
    const ScopedEnv env({{"INCCL_ALGO", "hierarchical"}});
    for (const std::string hosts : {"aaa", "abc"}) {
      RunHosts(hosts, [&](const Side&, ccl_comm_t comm) {
        EXPECT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                  CCL_INVALID_ARGUMENT);
        const std::string text = ccl_get_last_error(comm);
        EXPECT_NE(text.find("needs several hosts"), std::string::npos) << text;
      });
    }
  }
  // In rank order: ((1e8 + 1) - 1e8) + 1; by hosts it is (1e8 - 1e8) + (1 + 1).
  for (const auto& [reproducible, sum] : {std::pair("1", 1.0f), std::pair("0", 2.0f)}) {
    const ScopedEnv env({{"INCCL_REPRODUCIBLE", reproducible}, {"INCCL_SLICE_BYTES", "4096"}});
    RunHosts("abab", [&, expected = sum](const Side& side, ccl_comm_t comm) {
      const float parts[] = {1e8f, 1.0f, -1e8f, 1.0f};
      std::vector<float> data(30000, parts[side.rank()]);
      EXPECT_EQ(
          ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr),
          CCL_SUCCESS);
      EXPECT_EQ(std::count(data.begin(), data.end(), expected), 30000);
    });
  }
  const ScopedEnv both({{"INCCL_REPRODUCIBLE", "1"}, {"INCCL_ALGO", "hierarchical"}});
  ccl_unique_id_t id;
  EXPECT_EQ(ccl_get_unique_id(&id), CCL_INVALID_ARGUMENT);
  const std::string text = ccl_get_last_error(nullptr);
  EXPECT_NE(text.find("sums in rank order"), std::string::npos) << text;
}

struct CompressedResults {
  Vectors outputs;
  double error_bound = 0;  // the largest of all ranks
};

CompressedResults RunOnHosts(const std::string& hosts, Collective collective, const char* spec,
                             const Vectors& inputs) {
  const size_t n = hosts.size(), sent = inputs[0].size();
  const size_t count = collective == Collective::kReduceScatter ? sent / n : sent;
  const size_t got = collective == Collective::kAllGather ? sent * n : count;
  SharedFloats shared(n * (got + 1));
  RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
    const auto r = static_cast<size_t>(side.rank());
    ccl_codec_t codec = nullptr;
    EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS) << ccl_get_last_error(nullptr);
    ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec;
    how.seed = 9;
    how.step = 3;
    how.stats = &stats;
    EXPECT_EQ(CallCompressed(collective, inputs[r].data(), shared.data() + r * got, count,
                             CCL_FLOAT32, CCL_SUM, &how, comm),
              CCL_SUCCESS)
        << ccl_get_last_error(comm);
    EXPECT_EQ(stats.compressed, 1);
    shared.data()[n * got + r] = static_cast<float>(stats.error_bound);
    ccl_codec_destroy(codec);
  });
  CompressedResults results;
  for (size_t r = 0; r < n; ++r) {
    results.outputs.emplace_back(shared.data() + r * got, shared.data() + (r + 1) * got);
    results.error_bound = std::max<double>(results.error_bound, shared.data()[n * got + r]);
  }
  return results;
}

// Every codec's result has the bits of a run on one host; hbi's is near the sum in fp64. Sums of
// floats depend on the order, so codecs that add floats run the same algorithm on both.
TEST_F(HostsTest, CompressedResultsHaveTheBitsOfOneHost) {
  for (const char* spec :
       {"hbi:bits=6", "hbi:m=2", "hbi:code=entropy", "bf16", "fp8", "mxfp8", "lossless", "qsgd"}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const std::string hosts : kLayouts) {
        SCOPED_TRACE(std::string(spec) + " " + Name(collective) + " " + hosts);
        if (std::string(spec) == "hbi:m=2" && collective != Collective::kAllReduce) continue;
        const Vectors inputs = MakeInputs(Ranks(hosts), 30000, TestSeed());
        const bool any_order =
            std::string(spec) == "hbi:bits=6" || collective == Collective::kAllGather;
        const ScopedEnv slices({{"INCCL_SLICE_BYTES", "8192"}, {"INCCL_ALGO", "direct"}});
        const CompressedResults one =
            RunOnHosts(std::string(hosts.size(), 'a'), collective, spec, inputs);
        const ScopedEnv env({{"INCCL_ALGO", any_order ? "hierarchical" : "direct"}});
        const CompressedResults many = RunOnHosts(hosts, collective, spec, inputs);
        for (size_t r = 0; r < hosts.size(); ++r) {
          EXPECT_EQ(Differences(one.outputs[r], many.outputs[r]), 0u) << "rank " << r;
        }
        if (collective != Collective::kAllReduce || std::string(spec) != "hbi:bits=6") continue;
        for (size_t i = 0; i < inputs[0].size(); ++i) {
          double sum = 0;
          for (const std::vector<float>& input : inputs) sum += input[i];
          ASSERT_LE(std::abs(many.outputs[0][i] - sum), many.error_bound * (1 + 1e-6)) << i;
        }
      }
    }
  }
}

uint64_t Passed(const char* point) { return fault::Hits(fault::IndexOf(point)); }

// Whether something is so on all ranks.
bool Everywhere(bool here, ccl_comm_t comm) {
  const int32_t mine = here ? 1 : 0;
  int32_t all = 0;
  EXPECT_EQ(ccl_allreduce(&mine, &all, 1, CCL_INT32, CCL_MIN, comm, nullptr), CCL_SUCCESS);
  return all != 0;
}

// Peers of the host access the registered buffers in place, the others get the same through slots.
class RegisteredOnHostsTest : public HostsTest,
                              public ::testing::WithParamInterface<const char*> {};

TEST_P(RegisteredOnHostsTest, AreUsedInPlaceInsideAHost) {
  constexpr size_t kCount = 300'000;
  constexpr size_t kBytes = (kCount * 5 + 4096) * 4;
  constexpr int kMostRounds = 3000;
  const ScopedEnv env({{"INCCL_SLICE_BYTES", "16384"}, {"INCCL_ALGO", GetParam()}});
  for (const std::string hosts : kLayouts) {
    SCOPED_TRACE(hosts);
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      const int n = Ranks(hosts), rank = side.rank();
      void *send = nullptr, *recv = nullptr;
      ASSERT_EQ(ccl_mem_alloc(&send, kBytes), CCL_SUCCESS);
      ASSERT_EQ(ccl_mem_alloc(&recv, kBytes), CCL_SUCCESS);
      auto* const in = static_cast<int32_t*>(send);
      auto* const out = static_cast<int32_t*>(recv);
      fault::Arm({});
      bool seen = false;
      for (int round = 0; round < kMostRounds && !(seen && round >= 12); ++round) {
        for (size_t i = 0; i < kCount; ++i) in[i] = Value(rank, i) + round;
        std::fill_n(out, kCount, -1);
        const auto segment = static_cast<size_t>(rank) * (kCount / static_cast<size_t>(n));
        const size_t part = kCount / static_cast<size_t>(n);
        const auto sum = [&](size_t i) {
          int32_t total = 0;
          for (int r = 0; r < n; ++r) total += Value(r, i) + round;
          return total;
        };
        switch (round % 3) {
          case 0:
            EXPECT_EQ(ccl_allreduce(in, out, kCount, CCL_INT32, CCL_SUM, comm, nullptr),
                      CCL_SUCCESS);
            EXPECT_EQ(Wrong<int32_t>({out, kCount}, sum), 0u) << round;
            break;
          case 1:
            EXPECT_EQ(ccl_reduce_scatter(in, out, part, CCL_INT32, CCL_SUM, comm, nullptr),
                      CCL_SUCCESS);
            EXPECT_EQ(Wrong<int32_t>({out, part}, [&](size_t i) { return sum(segment + i); }), 0u)
                << round;
            break;
          default:
            EXPECT_EQ(ccl_broadcast(in, out, kCount, CCL_INT32, round % n, comm, nullptr),
                      CCL_SUCCESS);
            EXPECT_EQ(Wrong<int32_t>({out, kCount},
                                     [&](size_t i) { return Value(round % n, i) + round; }),
                      0u)
                << round;
        }
        const bool here =
            Passed("zero_copy.after_publish") > 0 && Passed("zero_copy.after_delivery") > 0;
        seen = Everywhere(here || !HasNeighbour(hosts, rank), comm);
      }
      EXPECT_TRUE(seen) << "no registered buffer was used in place";
      if (!HasNeighbour(hosts, rank)) {
        EXPECT_EQ(Passed("zero_copy.after_publish"), 0u) << "a region went to another host";
      }
      fault::Disarm();
      EXPECT_EQ(ccl_mem_free(send), CCL_SUCCESS);
      EXPECT_EQ(ccl_mem_free(recv), CCL_SUCCESS);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, RegisteredOnHostsTest,
                         ::testing::Values("direct", "hierarchical"));

bool Sums(ccl_comm_t comm) {
  int n = 0, rank = 0;
  EXPECT_EQ(ccl_comm_count(comm, &n), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_user_rank(comm, &rank), CCL_SUCCESS);
  std::vector<int32_t> data = Values(rank, 50001);
  if (ccl_allreduce(data.data(), data.data(), data.size(), CCL_INT32, CCL_SUM, comm, nullptr) !=
      CCL_SUCCESS) {
    return false;
  }
  return Wrong(data, [&](size_t i) {
           int32_t sum = 0;
           for (int r = 0; r < n; ++r) sum += Value(r, i);
           return sum;
         }) == 0;
}

// A rank that is ready leaves; the others, who need what it sent, come late.
TEST_F(HostsTest, WhatARankHasSentOutlivesItsCommunicator) {
  RunHosts("aab", [](const Side& side, ccl_comm_t comm) {
    std::vector<float> data(300000, side.rank() == 0 ? 7.0f : 0.0f);
    if (side.rank() != 0) usleep(200000);
    EXPECT_EQ(ccl_broadcast(data.data(), data.data(), data.size(), CCL_FLOAT32, 0, comm, nullptr),
              CCL_SUCCESS)
        << ccl_get_last_error(comm);
    EXPECT_EQ(std::count(data.begin(), data.end(), 7.0f), 300000);
  });
}

// The victim dies in the middle of calls. Survivors of its host and of other hosts name it, shrink
// and go on.
TEST_F(HostsTest, SurvivorsNameTheDeadRankAndShrink) {
  for (const std::string hosts : {"aab", "abab", "abcab"}) {
    for (int victim = 0; victim < Ranks(hosts); ++victim) {
      SCOPED_TRACE(hosts + " without " + std::to_string(victim));
      const auto body = [&](const Side& side, ccl_comm_t comm) {
        for (int i = 0; i < 10; ++i) EXPECT_TRUE(Sums(comm));
        side.mine().stage = 1;
        if (side.rank() == victim) {
          for (int rank = 0; rank < side.nranks(); ++rank) EXPECT_TRUE(side.Await(rank, 1));
          raise(SIGKILL);
        }
        std::vector<float> data(100'000, 1.0f);
        ccl_result_t result = CCL_SUCCESS;
        while (result == CCL_SUCCESS) {
          result = ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm,
                                 nullptr);
        }
        EXPECT_EQ(result, CCL_REMOTE_ERROR);
        const std::string text = ccl_get_last_error(comm);
        EXPECT_NE(text.find("peer " + std::to_string(victim) + "@"), std::string::npos) << text;
        ccl_comm_t smaller = nullptr;
        ASSERT_EQ(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT),
                  CCL_SUCCESS)
            << ccl_get_last_error(nullptr);
        int n = 0;
        EXPECT_EQ(ccl_comm_count(smaller, &n), CCL_SUCCESS);
        EXPECT_EQ(n, Ranks(hosts) - 1);
        EXPECT_TRUE(Sums(smaller));
        EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
      };
      RunHosts(hosts, body, {victim});
    }
  }
}

// The parts have all ranks on one host, each on another one, or something in between.
TEST_F(HostsTest, Split) {
  for (const std::string hosts : kLayouts) {
    SCOPED_TRACE(hosts);
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      for (const int color : {side.rank() % 2, side.rank() / 2, 0}) {
        ccl_comm_t part = nullptr;
        ASSERT_EQ(ccl_comm_split(comm, color, -side.rank(), &part, nullptr), CCL_SUCCESS)
            << ccl_get_last_error(nullptr);
        EXPECT_TRUE(Sums(part));
        EXPECT_EQ(ccl_comm_destroy(part), CCL_SUCCESS);
      }
      EXPECT_TRUE(Sums(comm));
    });
  }
}

// Rank 0 waits for the others, which make no call, until a thread of its own ends that.
TEST_F(HostsTest, AbortWakesAWaitingRank) {
  ProcessWorld world(
      {.nranks = 3, .deadline_seconds = 60.0 * kSlowness, .baseline = false}, [](const Side& side) {
        SetHost("aab", side.rank());
        ccl_comm_t comm = nullptr;
        if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
        if (side.rank() != 0) {
          EXPECT_TRUE(side.Await(0, 1));
          return ccl_comm_abort(comm) == CCL_SUCCESS ? 0 : 12;
        }
        std::thread aborter([&] {
          usleep(100'000);
          EXPECT_EQ(ccl_comm_abort(comm), CCL_SUCCESS);
        });
        float x = 1;
        EXPECT_NE(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
        aborter.join();
        side.mine().stage = 1;
        return 0;
      });
  world.ExpectAllExited();
}

TEST(HostsErrorTest, ShmAloneCannotJoinTwoHosts) {
  const ScopedEnv env({{"INCCL_TRANSPORT", "shm"}});
  ProcessWorld world({.nranks = 3}, [](const Side& side) {
    SetHost("aab", side.rank());
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_INVALID_USAGE);
    return 0;
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(std::string(world.report(rank).text),
              "rank " + std::to_string(rank) +
                  "/3: init: no common transport of INCCL_TRANSPORT=shm for ranks 0 and 2 (and 1 "
                  "other pair): shm: ranks 0 and 2 are on different hosts");
  }
}

}  // namespace
}  // namespace inccl::test
