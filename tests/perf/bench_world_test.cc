// SPDX-License-Identifier: Apache-2.0
//
// Ranks as forked processes: they meet, exchange, and their ends are seen.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "perf/support/fork_world.h"
#include "perf/support/shared_barrier.h"
#include "perf/support/thread_world.h"

namespace inccl::perf {
namespace {

// Memory that the children share with the test.
template <typename T>
T* Shared() {
  void* data = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : new (data) T();
}

TEST(ForkWorld, EveryRankKnowsItself) {
  auto* seen = Shared<std::atomic<uint32_t>>();
  EXPECT_EQ(RunForked("test", 5,
                      [&](World& world) {
                        if (world.size() != 5) return 7;
                        seen->fetch_or(1u << world.rank());
                        return 0;
                      }),
            0);
  EXPECT_EQ(seen->load(), 31u);
}

TEST(ForkWorld, NoRankPassesABarrierEarly) {
  struct State {
    std::atomic<int> arrived[200];
    std::atomic<int> early;
  };
  auto* state = Shared<State>();
  constexpr int kRanks = 6;  // more than most small machines have cores
  EXPECT_EQ(RunForked("test", kRanks,
                      [&](World& world) {
                        for (auto& arrived : state->arrived) {
                          arrived.fetch_add(1);
                          if (!world.Barrier().ok()) return 8;
                          if (arrived.load() != kRanks) state->early.fetch_add(1);
                        }
                        return 0;
                      }),
            0);
  EXPECT_EQ(state->early.load(), 0);
}

TEST(ForkWorld, AllGatherOfAnySize) {
  EXPECT_EQ(RunForked("test", 3,
                      [](World& world) {
                        for (const size_t bytes : {0u, 1u, 65536u, 65537u, 200001u}) {
                          std::vector<std::byte> mine(bytes), all(3 * bytes);
                          for (size_t i = 0; i < bytes; ++i) {
                            mine[i] = static_cast<std::byte>(
                                i * 7 + static_cast<size_t>(world.rank()) * 31);
                          }
                          if (!world.AllGather(mine, all).ok()) return 8;
                          for (size_t i = 0; i < all.size(); ++i) {
                            if (all[i] != static_cast<std::byte>(i % bytes * 7 + i / bytes * 31))
                              return 9;
                          }
                        }
                        Result<std::vector<int>> ranks = Gather(world, world.rank() * 10);
                        return ranks.ok() && *ranks == std::vector<int>({0, 10, 20}) ? 0 : 10;
                      }),
            0);
}

TEST(ForkWorld, BroadcastOfASecret) {
  EXPECT_EQ(RunForked("test", 4,
                      [](World& world) {
                        std::vector<std::byte> secret(100000);  // more than a pipe holds
                        if (world.rank() == 0) std::memset(secret.data(), 0x5C, secret.size());
                        if (!world.Broadcast(secret).ok()) return 8;
                        for (const std::byte b : secret) {
                          if (b != std::byte{0x5C}) return 9;
                        }
                        return 0;
                      }),
            0);
}

TEST(ForkWorld, TheWorstExitCodeCounts) {
  EXPECT_EQ(RunForked("test", 3, [](World& world) { return world.rank() == 1 ? kExitWrong : 0; }),
            kExitWrong);
  EXPECT_EQ(RunForked("test", 2, [](World&) { return int{kExitUsage}; }), kExitUsage);
}

// Not a failure that others must be told.
TEST(ForkWorld, WithoutADeviceAllEndByThemselves) {
  EXPECT_EQ(RunForked("test", 3,
                      [](World& world) {
                        if (world.rank() == 0) return int{kExitNoDevice};
                        std::this_thread::sleep_for(std::chrono::milliseconds(50));
                        return int{kExitNoDevice};
                      }),
            kExitNoDevice);
}

TEST(ForkWorld, AKilledRankEndsTheRun) {
  testing::internal::CaptureStderr();
  auto* errors = Shared<std::atomic<int>>();
  EXPECT_EQ(RunForked("test", 3,
                      [&](World& world) {
                        if (world.rank() == 1) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(50));
                          raise(SIGKILL);
                        }
                        const Status s = world.Barrier();  // rank 1 never comes
                        if (s.code() == Code::kRemoteError) errors->fetch_add(1);
                        return int{kExitFailed};
                      }),
            kExitFailed);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("rank 1 was killed by signal 9"), std::string::npos) << text;
  EXPECT_EQ(errors->load(), 2);
}

TEST(ForkWorld, ARankThatHangsAfterAFailureIsKilled) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunForked("test", 2,
                      [](World& world) -> int {
                        if (world.rank() == 0) return kExitFailed;
                        for (;;) pause();
                      }),
            kExitFailed);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("rank 1 still runs"), std::string::npos) << text;
}

TEST(ForkWorld, RankZeroDyingBeforeTheBroadcastIsAnError) {
  testing::internal::CaptureStderr();
  auto* code = Shared<std::atomic<int>>();
  EXPECT_EQ(RunForked("test", 2,
                      [&](World& world) -> int {
                        if (world.rank() == 0) raise(SIGKILL);
                        std::byte byte{};
                        code->store(static_cast<int>(world.Broadcast(std::span(&byte, 1)).code()));
                        return kExitFailed;
                      }),
            kExitFailed);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(code->load(), static_cast<int>(Code::kRemoteError));
}

// A rank that has reached it with all others knows that, whatever one of them does next.
TEST(SharedBarrier, AbortComesTooLateForABarrierThatAllHaveReached) {
  for (int round = 0; round < 200; ++round) {
    SharedBarrier barrier{};
    std::atomic<int> passed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        if (!barrier.Wait(3)) return;
        passed.fetch_add(1);
        barrier.Abort();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(passed.load(), 3) << round;
    ASSERT_FALSE(barrier.Wait(1));
  }
}

TEST(ThreadWorld, RanksKnowThemselvesAndExchange) {
  EXPECT_EQ(RunThreads("test", 4,
                       [](World& world) {
                         if (world.size() != 4) return 7;
                         for (int round = 0; round < 50; ++round) {
                           const Result<std::vector<int>> all =
                               Gather(world, 10 * round + world.rank());
                           if (!all.ok()) return 8;
                           for (int rank = 0; rank < 4; ++rank) {
                             if ((*all)[static_cast<size_t>(rank)] != 10 * round + rank) return 9;
                           }
                           int word = world.rank() == 0 ? round : -1;
                           if (!world.Broadcast(std::as_writable_bytes(std::span(&word, 1))).ok()) {
                             return 10;
                           }
                           if (word != round) return 11;
                         }
                         return world.rank() == 2 ? int{kExitWrong} : 0;
                       }),
            kExitWrong);
}

TEST(ThreadWorld, ARankThatGivesUpEndsTheOthersBarriers) {
  std::atomic<int> told{0};
  EXPECT_EQ(RunThreads("test", 3,
                       [&](World& world) {
                         if (world.rank() == 1) return int{kExitFailed};
                         if (world.Barrier().code() == Code::kRemoteError) told.fetch_add(1);
                         return int{kExitFailed};
                       }),
            kExitFailed);
  EXPECT_EQ(told, 2);
}

TEST(SharedBarrier, AbortReleasesThoseWhoWait) {
  SharedBarrier barrier{};
  std::atomic<int> released{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      if (!barrier.Wait(4)) released.fetch_add(1);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(released.load(), 0);
  barrier.Abort();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(released.load(), 3);
  EXPECT_FALSE(barrier.Wait(4));
}

}  // namespace
}  // namespace inccl::perf
