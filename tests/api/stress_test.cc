// SPDX-License-Identifier: Apache-2.0
//
// Many ranks on few cores, two communicators each, a thread for each of them: random collectives,
// types, reductions, codecs, sizes and streams, every result verified. INCCL_TEST_OPERATIONS says
// how many operations per communicator (default: what fits into a test run), INCCL_TEST_SEED
// replays.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "api/check.h"
#include "api/random_operations.h"
#include "api/world.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

int Ranks() {
  const char* text = std::getenv("INCCL_TEST_RANKS");
  return text == nullptr ? 16 : std::atoi(text);
}

uint64_t Seed() {
  const char* text = std::getenv("INCCL_TEST_SEED");
  return text == nullptr ? 20261121 : std::strtoull(text, nullptr, 10);
}

int Operations() {
  const char* text = std::getenv("INCCL_TEST_OPERATIONS");
  if (text != nullptr) return std::atoi(text);
  return kSanitized ? 200 : 5000;
}

// Memory of this process alone. Slots that are used for the first time are shared memory, and come
// with the operations for a while.
size_t AnonymousKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  size_t kib = 0;
  while (status >> word) {
    if (word == "RssAnon:") status >> kib;
  }
  return kib;
}

TEST(StressTest, SixteenRanksTwoCommunicatorsEach) {
  const int ranks = Ranks();
  const uint64_t seed = Seed();
  const int operations = Operations();
  std::printf("INCCL_TEST_SEED=%llu, %d operations on each of two communicators of %d ranks\n",
              static_cast<unsigned long long>(seed), operations, ranks);
  RunProcesses(
      ranks,
      [&](int rank, ccl_comm_t comm) {
        ccl_comm_t other = nullptr;
        ccl_stream_t streams[2] = {};
        CHECK_OK(ccl_comm_split(comm, 0, rank, &other, nullptr));
        for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
        RandomOperationRunner first(rank, ranks, comm, seed, streams[0], {});
        RandomOperationRunner second(rank, ranks, other, seed + 1, streams[1], {});
        const auto run = [](RandomOperationRunner* runner, int count) {
          CHECK_OK(runner->Run(0, static_cast<uint64_t>(count)));
        };
        const auto both = [&](int count) {
          std::thread beside(run, &second, count);
          run(&first, count);
          beside.join();
        };
        both(std::max(operations / 3, 500));  // opens all lanes, touches all memory
        usleep(100'000);                      // threads that have been joined may still be ending
        const Holdings before = Holdings::Now();
        const size_t kib_before = AnonymousKib();
        both(operations);
        usleep(100'000);
        const Holdings after = Holdings::Now();
        const size_t kib_after = AnonymousKib();
        EXPECT_LE(after.fds, before.fds);  // those of the rendezvous may just be closing
        EXPECT_LE(after.threads, before.threads);
        if (rank == 0)
          std::fprintf(stderr, "memory: %zu KiB, then %zu KiB\n", kib_before, kib_after);
        if (!kSanitized) {
          EXPECT_LT(kib_after, kib_before + (4u << 10));
        }
        for (ccl_stream_t stream : streams) CHECK_OK(ccl_stream_destroy(stream));
        CHECK_OK(ccl_comm_destroy(other));
      },
      3600 * 1000);
}

}  // namespace
}  // namespace inccl::test
