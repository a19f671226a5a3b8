// SPDX-License-Identifier: Apache-2.0
//
// Ranks that do not make the same calls: every pair of calls that differ, calls in another order,
// calls left out, and communicators used in opposite orders.
#include <fmt/format.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

struct Call {
  const char* name;  // in the text of the error
  std::function<ccl_result_t(ccl_comm_t)> make;
};

// In place is allowed to differ; so it is used throughout.
float* Memory() {
  thread_local std::vector<float> memory(1 << 19);
  return memory.data();
}

Call Reduction(const char* name, size_t count, ccl_datatype_t type, ccl_redop_t op) {
  return {name, [=](ccl_comm_t comm) {
            return ccl_allreduce(Memory(), Memory(), count, type, op, comm, nullptr);
          }};
}

Call Compressed(const char* name, const char* spec, uint64_t seed) {
  return {name, [=](ccl_comm_t comm) {
            ccl_codec_t codec = nullptr;
            EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS);
            ccl_compression_t options = CCL_COMPRESSION_INIT;
            options.codec = codec;
            options.seed = seed;
            options.step = 1;
            const ccl_result_t result = ccl_allreduce_compressed(
                Memory(), Memory(), 3000, CCL_FLOAT32, CCL_SUM, &options, comm, nullptr);
            ccl_codec_destroy(codec);
            return result;
          }};
}

std::vector<Call> Calls() {
  return {
      Reduction("allreduce(count=3000, float32, sum)", 3000, CCL_FLOAT32, CCL_SUM),
      Reduction("count=0", 0, CCL_FLOAT32, CCL_SUM),
      Reduction("count=3001", 3001, CCL_FLOAT32, CCL_SUM),
      Reduction("count=400000", 400000, CCL_FLOAT32, CCL_SUM),
      Reduction("int32", 3000, CCL_INT32, CCL_SUM),
      Reduction("max", 3000, CCL_FLOAT32, CCL_MAX),
      {"reduce_scatter",
       [](ccl_comm_t c) {
         return ccl_reduce_scatter(Memory(), Memory() + 4096 * 3, 3000, CCL_FLOAT32, CCL_SUM, c,
                                   nullptr);
       }},
      {"allgather",
       [](ccl_comm_t c) {
         return ccl_allgather(Memory(), Memory() + 4096, 3000, CCL_FLOAT32, c, nullptr);
       }},
      {"broadcast(count=3000, float32, root=0)",
       [](ccl_comm_t c) {
         return ccl_broadcast(Memory(), Memory(), 3000, CCL_FLOAT32, 0, c, nullptr);
       }},
      {"root=1",
       [](ccl_comm_t c) {
         return ccl_broadcast(Memory(), Memory(), 3000, CCL_FLOAT32, 1, c, nullptr);
       }},
      {"reduce(",
       [](ccl_comm_t c) {
         return ccl_reduce(Memory(), Memory(), 3000, CCL_FLOAT32, CCL_SUM, 0, c, nullptr);
       }},
      Compressed("bits=6", "hbi:bits=6", 1),
      Compressed("bits=5", "hbi:bits=5", 1),
      Compressed("m=2", "hbi:m=2", 1),
      Compressed("seed=2", "hbi:bits=6", 2),
  };
}

ccl_result_t Sum(ccl_comm_t comm) {
  return ccl_allreduce(Memory(), Memory(), 10, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// What each rank gets when rank `odd` calls `other` and the rest `usual`: the error may come with
// the call after, to a rank whose part is done when it has sent.
void ExpectDisagreement(int rank, int n, int odd, ccl_comm_t comm, const Call& usual,
                        const Call& other) {
  const double start = Seconds();
  ccl_result_t result = rank == odd ? other.make(comm) : usual.make(comm);
  for (int i = 0; i < 3 && result == CCL_SUCCESS; ++i) result = Sum(comm);
  const std::string text = ccl_get_last_error(comm);
  EXPECT_EQ(result, CCL_INVALID_USAGE) << text;
  EXPECT_LT(Seconds() - start, 2.0 + SlackSeconds());
  EXPECT_NE(text.find(fmt::format("rank {}/{} calls", odd, n)), std::string::npos) << text;
  EXPECT_NE(text.find(usual.name), std::string::npos) << text;
  EXPECT_NE(text.find(other.name), std::string::npos) << text;
  EXPECT_EQ(MissingFromError(text, result, {.rank = rank, .nranks = n}), "");
}

class UsageTest : public FaultTest {};

TEST_F(UsageTest, Row11_EveryPairOfCallsThatDiffer) {
  ForRow("11", "loopback");
  constexpr int kRanks = 3;
  const std::vector<Call> calls = Calls();
  for (size_t usual = 0; usual < calls.size(); ++usual) {
    for (size_t other = 0; other < calls.size(); ++other) {
      if (usual == other) continue;
      SCOPED_TRACE(fmt::format("{} against {}", calls[usual].name, calls[other].name));
      const int odd = static_cast<int>((usual + other) % kRanks);
      RunThreads(kRanks, [&](int rank, ccl_comm_t comm) {
        ExpectDisagreement(rank, kRanks, odd, comm, calls[usual], calls[other]);
      });
      if (HasFailure()) return;
    }
  }
}

class ProcessUsageTest : public TransportFaultTest {};

TEST_P(ProcessUsageTest, Row11_EveryKindOfDifference) {
  ForRow("11");
  constexpr int kRanks = 3;
  const std::vector<Call> calls = Calls();
  RunWorlds(
      calls.size() - 1, 2,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks}, [&, i](const Side& side) {
              ccl_comm_t comm = nullptr;
              if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
              const int odd = static_cast<int>(i % kRanks);
              ExpectDisagreement(side.rank(), kRanks, odd, comm, calls[0], calls[i + 1]);
              return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
            });
      },
      [&](size_t i, ProcessWorld& world) {
        SCOPED_TRACE(calls[i + 1].name);
        world.ExpectAllExited();
      });
}

TEST_P(ProcessUsageTest, Row11_InPlaceOrNotMayDiffer) {
  ForRow("11");
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    std::vector<float> in(3000, static_cast<float>(rank + 1)), out(3000);
    float* const recv = rank == 1 ? in.data() : out.data();
    ASSERT_EQ(ccl_allreduce(in.data(), recv, 3000, CCL_FLOAT32, CCL_SUM, comm, nullptr),
              CCL_SUCCESS);
    for (int i = 0; i < 3000; ++i) ASSERT_EQ(recv[i], 6.0f);
  });
}

TEST_P(ProcessUsageTest, Row12_CallsInAnotherOrder) {
  ForRow("12");
  const std::vector<Call> calls = Calls();
  RunProcesses(3, [&](int rank, ccl_comm_t comm) {
    const Call &first = calls[rank == 2 ? 2 : 0], &second = calls[rank == 2 ? 0 : 2];
    ccl_result_t result = first.make(comm);
    if (result == CCL_SUCCESS) result = second.make(comm);
    for (int i = 0; i < 3 && result == CCL_SUCCESS; ++i) result = Sum(comm);
    EXPECT_EQ(result, CCL_INVALID_USAGE) << ccl_get_last_error(comm);
    EXPECT_TRUE(Matches(ccl_get_last_error(comm), "rank 2/3 calls .*count=3001"))
        << ccl_get_last_error(comm);
  });
}

// The skipped call looks like the next one: only that the one rank is late can be told.
TEST_P(ProcessUsageTest, Row12_ARankSkipsACall) {
  ForRow("12");
  const ShortWatchdog short_watchdog;
  RunProcesses(3, [&](int rank, ccl_comm_t comm) {
    for (int i = 0; i < (rank == 1 ? 4 : 5); ++i) {
      const ccl_result_t result = Sum(comm);
      if (i < 4) {
        EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
      } else {
        const std::string text = ccl_get_last_error(comm);
        EXPECT_EQ(result, CCL_TIMEOUT) << text;
        EXPECT_TRUE(Matches(text, "peer 1@[^ ]+.*alive.* op 4")) << text;
      }
    }
    // Rank 1 is elsewhere, alive, until the others have given up.
    if (rank == 1) {
      ccl_result_t error = CCL_SUCCESS;
      const double limit = Seconds() + kOpSeconds + SlackSeconds();
      while (error == CCL_SUCCESS && Seconds() < limit) {
        usleep(1000);
        EXPECT_EQ(ccl_comm_get_async_error(comm, &error), CCL_SUCCESS);
      }
      EXPECT_EQ(error, CCL_TIMEOUT);
    }
  });
}
INSTANTIATE_OVER_TRANSPORTS(ProcessUsageTest);

// A send or a receive whose peer is in a collective: no rank can go on, and all are told both
// calls. The chain from the peer back to the receiver may be long (ring), and the limit of
// operations is far away.
TEST_F(UsageTest, Row11_SendsAndReceivesAgainstCollectives) {
  ForRow("11", "loopback");
  struct Mismatch {
    int nranks;
    const char* algorithm;
    bool is_send;
    int peer;
  };
  std::vector<std::thread> worlds;
  for (const Mismatch& m : {Mismatch{2, "", false, 1}, Mismatch{3, "direct", false, 2},
                            Mismatch{3, "direct", true, 1}, Mismatch{4, "ring", false, 2}}) {
    const ScopedEnv env({{"INCCL_ALGO", m.algorithm}});
    std::vector<ccl_comm_t> comms(static_cast<size_t>(m.nranks));
    ASSERT_EQ(ccl_comm_init_all(comms.data(), m.nranks, nullptr), CCL_SUCCESS);
    for (int rank = 0; rank < m.nranks; ++rank) {
      worlds.emplace_back([m, rank, comm = comms[static_cast<size_t>(rank)]] {
        const size_t count = 1 << 19;
        const double start = Seconds();
        EXPECT_EQ(Sum(comm), CCL_SUCCESS) << ccl_get_last_error(comm);
        ccl_result_t result = CCL_SUCCESS;
        if (rank != 0) {
          result = Sum(comm);
        } else if (m.is_send) {
          result = ccl_send(Memory(), count, CCL_FLOAT32, m.peer, comm, nullptr);
        } else {
          result = ccl_recv(Memory(), count, CCL_FLOAT32, m.peer, comm, nullptr);
        }
        const std::string text = ccl_get_last_error(comm);
        EXPECT_EQ(result, CCL_INVALID_USAGE) << text;
        EXPECT_LT(Seconds() - start, 2.0 + SlackSeconds());
        const std::string point =
            fmt::format("rank 0/{} after op 1 in {}.count=524288, float32, peer={}", m.nranks,
                        m.is_send ? "send" : "recv", m.peer);
        EXPECT_TRUE(Matches(text, point)) << text;
        EXPECT_TRUE(Matches(
            text, fmt::format("peer {}@[^ ]+ in op 2 allreduce.count=10, float32, sum", m.peer)))
            << text;
        EXPECT_EQ(MissingFromError(text, result, {.rank = rank, .nranks = m.nranks}), "");
        EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
      });
    }
  }
  for (std::thread& world : worlds) world.join();
}

// Rank 1 takes part in a broadcast before it sends, rank 0 receives before that: in order as long
// as the root needs neither, however late it comes.
TEST_F(UsageTest, Row12_ASendAfterACallThatNeedsAnotherRankOnlyIsInOrder) {
  ForRow("12", "loopback");
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    float message = static_cast<float>(rank), from_root = message;
    if (rank == 0) {
      EXPECT_EQ(ccl_recv(&message, 1, CCL_FLOAT32, 1, comm, nullptr), CCL_SUCCESS)
          << ccl_get_last_error(comm);
      EXPECT_EQ(message, 1.0f);
    }
    if (rank == 2) usleep(2'200'000);  // longer than any stall that is judged
    EXPECT_EQ(ccl_broadcast(&from_root, &from_root, 1, CCL_FLOAT32, 2, comm, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    EXPECT_EQ(from_root, 2.0f);
    if (rank == 1) {
      EXPECT_EQ(ccl_send(&message, 1, CCL_FLOAT32, 0, comm, nullptr), CCL_SUCCESS)
          << ccl_get_last_error(comm);
    }
  });
}

class OrderTest : public FaultTest {};

// Two communicators of the same ranks, used by two threads of each rank in any order.
TEST_F(OrderTest, Row13_ThreadsUseManyCommunicatorsAtOnce) {
  ForRow("13", "loopback");
  constexpr int kRanks = 3, kComms = 4, kCalls = 100;
  const Watchdog watchdog(60.0 * kSlowness);
  std::vector<std::vector<ccl_comm_t>> comms(kComms, std::vector<ccl_comm_t>(kRanks));
  for (auto& each : comms) {
    ASSERT_EQ(ccl_comm_init_all(each.data(), kRanks, nullptr), CCL_SUCCESS);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int turn = 0; turn < kComms; ++turn) {
      // Every rank starts its threads in another order.
      const auto index = static_cast<size_t>((turn + rank) % kComms);
      threads.emplace_back([&, rank, index] {
        ccl_comm_t comm = comms[index][static_cast<size_t>(rank)];
        for (int i = 0; i < kCalls; ++i) {
          float x = static_cast<float>(index + 1);
          ASSERT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
          ASSERT_EQ(x, kRanks * static_cast<float>(index + 1));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& each : comms) {
    for (ccl_comm_t comm : each) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  }
}

// With a stream each, opposite orders are no deadlock.
TEST_F(OrderTest, Row13_OppositeOrdersOnTwoStreams) {
  ForRow("13", "loopback");
  constexpr int kRanks = 2;
  const Watchdog watchdog(60.0 * kSlowness);
  std::vector<ccl_comm_t> a(kRanks), b(kRanks);
  ASSERT_EQ(ccl_comm_init_all(a.data(), kRanks, nullptr), CCL_SUCCESS);
  ASSERT_EQ(ccl_comm_init_all(b.data(), kRanks, nullptr), CCL_SUCCESS);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ccl_stream_t streams[2];
      for (ccl_stream_t& stream : streams) ASSERT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
      for (int i = 0; i < 50; ++i) {
        float x = 1, y = 10;
        const auto on_a = [&] {
          EXPECT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, a[rank], streams[0]),
                    CCL_SUCCESS);
        };
        const auto on_b = [&] {
          EXPECT_EQ(ccl_allreduce(&y, &y, 1, CCL_FLOAT32, CCL_SUM, b[rank], streams[1]),
                    CCL_SUCCESS);
        };
        rank == 0 ? (on_a(), on_b()) : (on_b(), on_a());
        for (ccl_stream_t stream : streams) {
          ASSERT_EQ(ccl_stream_synchronize(stream), CCL_SUCCESS);
        }
        ASSERT_EQ(x, 2.0f);
        ASSERT_EQ(y, 20.0f);
      }
      for (ccl_stream_t stream : streams) EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (ccl_comm_t comm : a) ccl_comm_destroy(comm);
  for (ccl_comm_t comm : b) ccl_comm_destroy(comm);
}

// A message is on its way for longer than ranks in a circle may stand still.
TEST_F(OrderTest, Row13_ASlowLinkIsNoCircle) {
  ForRow("13", "loopback");
  constexpr int kRanks = 3;
  const Watchdog watchdog(60.0 * kSlowness);
  const ScopedEnv slow({{"INCCL_TEST_LINK_US", "2500000"}});
  std::vector<ccl_comm_t> comms(kRanks);
  ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const int right = (rank + 1) % kRanks, left = (rank + kRanks - 1) % kRanks;
      ccl_comm_t comm = comms[static_cast<size_t>(rank)];
      const auto sent = static_cast<float>(10 + rank);
      float received = 0;
      ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
      ASSERT_EQ(ccl_send(&sent, 1, CCL_FLOAT32, right, comm, nullptr), CCL_SUCCESS);
      ASSERT_EQ(ccl_recv(&received, 1, CCL_FLOAT32, left, comm, nullptr), CCL_SUCCESS);
      EXPECT_EQ(ccl_group_end(), CCL_SUCCESS) << ccl_get_last_error(comm);
      EXPECT_EQ(received, static_cast<float>(10 + left));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (ccl_comm_t comm : comms) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
}

// Blocking calls in opposite orders wait for each other: the watchdog ends both.
TEST_F(OrderTest, Row13_OppositeOrdersOfBlockingCallsEndAtTheWatchdog) {
  ForRow("13", "loopback");
  const Watchdog watchdog(60.0 * kSlowness);
  const ShortWatchdog short_watchdog;
  std::vector<ccl_comm_t> a(2), b(2);
  ASSERT_EQ(ccl_comm_init_all(a.data(), 2, nullptr), CCL_SUCCESS);
  ASSERT_EQ(ccl_comm_init_all(b.data(), 2, nullptr), CCL_SUCCESS);
  const double start = Seconds();
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ccl_comm_t first = rank == 0 ? a[0] : b[1];
      EXPECT_EQ(Sum(first), CCL_TIMEOUT);
      const std::string text = ccl_get_last_error(first);
      EXPECT_TRUE(Matches(text, fmt::format("peer {}@", 1 - rank))) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(Seconds() - start, kOpSeconds + SlackSeconds());
  for (ccl_comm_t comm : a) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  for (ccl_comm_t comm : b) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
}

// Rank 1 has waited for long when it is kept from running, after it has looked and before it
// judges; meanwhile rank 0 comes, does its part and leaves.
TEST_F(OrderTest, Row12_WhoLeavesAfterItsPartHasTakenPart) {
  ForRow("12", "loopback");
  const Watchdog watchdog(60.0 * kSlowness);
  std::vector<ccl_comm_t> comms(2);
  ASSERT_EQ(ccl_comm_init_all(comms.data(), 2, nullptr), CCL_SUCCESS);
  std::thread peer;
  fault::Plan plan;
  plan.rank = 1;
  plan.point = fault::IndexOf("progress.before_stall");
  plan.hit = 30;  // 20 ms each: longer than a peer that has left is given
  plan.action = fault::Action::kCall;
  plan.call = [&] {
    peer = std::thread([&] {
      EXPECT_EQ(Sum(comms[0]), CCL_SUCCESS);
      EXPECT_EQ(ccl_comm_destroy(comms[0]), CCL_SUCCESS);
    });
    peer.join();
    usleep(50000);  // for the news to arrive
  };
  fault::Arm(plan);
  EXPECT_EQ(Sum(comms[1]), CCL_SUCCESS) << ccl_get_last_error(comms[1]);
  fault::Disarm();
  EXPECT_EQ(Sum(comms[1]), CCL_REMOTE_ERROR) << "no peer is left";
  EXPECT_TRUE(Matches(ccl_get_last_error(comms[1]), "peer 0@.*closed its communicator"))
      << ccl_get_last_error(comms[1]);
  EXPECT_EQ(ccl_comm_destroy(comms[1]), CCL_SUCCESS);
}

}  // namespace
}  // namespace inccl::test
