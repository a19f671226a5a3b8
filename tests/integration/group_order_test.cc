// SPDX-License-Identifier: Apache-2.0
//
// The order of calls in groups: on a communicator with splits and shrinks among them, and on
// streams that several groups share.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "api/check.h"
#include "base/rng.h"
#include "support/seed.h"
#include "world/stacks.h"
#include "world/world.h"

namespace inccl::test {
namespace {

void ExpectSize(ccl_comm_t comm, int size) {
  int count = 0;
  CHECK_OK(ccl_comm_count(comm, &count));
  EXPECT_EQ(count, size);
}

// Rank 0 makes the same calls in one group that the others make one by one.
TEST(GroupOrderTest, ASplitComesAfterTheCallsBeforeIt) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    ccl_comm_t part = nullptr, whole = nullptr;
    int32_t a = 1 << rank, b = 1, c = rank;
    if (rank == 0) CHECK_OK(ccl_group_start());
    CHECK_OK(ccl_allreduce(&a, &a, 1, CCL_INT32, CCL_SUM, comm, nullptr));
    CHECK_OK(ccl_comm_split(comm, rank % 2, 0, &part, nullptr));
    CHECK_OK(ccl_allreduce(&b, &b, 1, CCL_INT32, CCL_SUM, comm, nullptr));
    CHECK_OK(ccl_comm_split(comm, 0, -rank, &whole, nullptr));
    CHECK_OK(ccl_allreduce(&c, &c, 1, CCL_INT32, CCL_MAX, comm, nullptr));
    if (rank == 0) CHECK_OK(ccl_group_end());
    EXPECT_EQ(a, 7);
    EXPECT_EQ(b, 3);
    EXPECT_EQ(c, 2);
    ExpectSize(part, rank == 1 ? 1 : 2);
    int place = -1;
    CHECK_OK(ccl_comm_user_rank(whole, &place));
    EXPECT_EQ(place, 2 - rank);
    CHECK_OK(ccl_comm_destroy(part));
    CHECK_OK(ccl_comm_destroy(whole));
  });
}

// The calls before a shrink have completed when it begins, as without a group; those on streams,
// too.
TEST(GroupOrderTest, AShrinkComesAfterTheCallsBeforeIt) {
  for (const bool on_stream : {false, true}) {
    RunThreads(3, [&](int rank, ccl_comm_t comm) {
      ccl_comm_t smaller = nullptr;
      ccl_stream_t stream = nullptr;
      if (on_stream) CHECK_OK(ccl_stream_create(&stream));
      std::vector<int64_t> sum(50000, 1 << rank);
      CHECK_OK(ccl_group_start());
      CHECK_OK(ccl_allreduce(sum.data(), sum.data(), sum.size(), CCL_INT64, CCL_SUM, comm, stream));
      CHECK_OK(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_DEFAULT));
      CHECK_OK(ccl_group_end());
      EXPECT_EQ(sum, std::vector<int64_t>(50000, 7));
      uint64_t last = 0;
      CHECK_OK(ccl_comm_last_completed(smaller, &last));
      EXPECT_EQ(last, 1u);
      CHECK_OK(ccl_comm_destroy(smaller));
      if (on_stream) CHECK_OK(ccl_stream_destroy(stream));
    });
  }
}

// A wrong call starts nothing of its group, whatever creates a communicator or not, and harms no
// communicator.
TEST(GroupOrderTest, AWrongCallStartsNothing) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    ccl_comm_t other = nullptr;
    CHECK_OK(ccl_comm_split(comm, 0, rank, &other, nullptr));
    CHECK_OK(ccl_comm_finalize(other));
    ccl_config_t config = CCL_CONFIG_INIT;
    config.codec = "none such";
    for (const int wrong : {0, 1, 2}) {
      int32_t value = 1;
      ccl_comm_t part = nullptr;
      if (rank == 1) {
        CHECK_OK(ccl_group_start());
        ccl_result_t result = CCL_SUCCESS;
        if (wrong == 0) result = ccl_comm_split(comm, 0, 0, &part, &config);
        CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_INT32, CCL_SUM, comm, nullptr));
        if (wrong == 1) {
          const int self = rank;
          result = ccl_comm_shrink(comm, &self, 1, &part, nullptr, CCL_SHRINK_DEFAULT);
        }
        if (wrong == 2) {
          result = ccl_allreduce(&value, &value, 1, CCL_INT32, CCL_SUM, other, nullptr);
        }
        EXPECT_NE(result, CCL_SUCCESS) << wrong;
        EXPECT_EQ(ccl_group_end(), result) << wrong;
        EXPECT_EQ(value, 1) << wrong;
        EXPECT_EQ(part, nullptr) << wrong;
      }
      CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_INT32, CCL_SUM, comm, nullptr));
      EXPECT_EQ(value, 3) << wrong;
    }
    CHECK_OK(ccl_comm_destroy(other));
  });
}

// One thread, all ranks, calls on streams and others, and a communicator that is created meanwhile.
TEST(GroupOrderTest, OneThreadMixesEverything) {
  constexpr size_t kRanks = 3;
  const Watchdog watchdog(60.0 * kSlowness);
  ccl_comm_t comms[kRanks] = {}, parts[kRanks] = {}, others[2] = {};
  ccl_stream_t streams[kRanks] = {};
  CHECK_OK(ccl_comm_init_all(comms, kRanks, nullptr));
  for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
  ccl_unique_id_t id;
  CHECK_OK(ccl_get_unique_id(&id));
  int32_t a[kRanks] = {1, 2, 3}, b[kRanks] = {}, from[kRanks] = {};
  CHECK_OK(ccl_group_start());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<int>(rank);
    if (rank < 2) CHECK_OK(ccl_comm_init_rank(&others[rank], 2, id, r));
    CHECK_OK(ccl_allreduce(&a[rank], &b[rank], 1, CCL_INT32, CCL_SUM, comms[rank], streams[rank]));
    CHECK_OK(ccl_comm_split(comms[rank], 0, r, &parts[rank], nullptr));
    CHECK_OK(ccl_allreduce(&b[rank], &b[rank], 1, CCL_INT32, CCL_SUM, comms[rank], streams[rank]));
    CHECK_OK(ccl_send(&a[rank], 1, CCL_INT32, (r + 1) % 3, comms[rank], nullptr));
    CHECK_OK(ccl_recv(&from[rank], 1, CCL_INT32, (r + 2) % 3, comms[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(ccl_stream_synchronize(streams[rank]));
    EXPECT_EQ(b[rank], 18);
    EXPECT_EQ(from[rank], a[(rank + 2) % kRanks]);
    ExpectSize(parts[rank], 3);
    CHECK_OK(ccl_comm_destroy(parts[rank]));
    CHECK_OK(ccl_comm_destroy(comms[rank]));
    CHECK_OK(ccl_stream_destroy(streams[rank]));
  }
  for (ccl_comm_t other : others) {
    ExpectSize(other, 2);
    CHECK_OK(ccl_comm_destroy(other));
  }
}

// The same random calls on every rank, each rank with groups of its own.
void RandomCalls(int rank, ccl_comm_t comm, uint64_t seed) {
  constexpr int kCalls = 24, kRanks = 3;
  enum Kind { kSum, kStreamSum, kSplit, kShrink, kKinds };
  std::vector<Kind> kinds;
  std::vector<int64_t> values(kCalls);
  std::vector<ccl_comm_t> made(kCalls);
  std::vector<bool> is_group_end(kCalls);
  uint64_t own = Mix64(seed + 1000 + static_cast<uint64_t>(rank));
  for (int i = 0; i < kCalls; ++i) {
    const uint64_t draw = Mix64(seed + static_cast<uint64_t>(i));
    kinds.push_back(static_cast<Kind>(draw % kKinds));
    // A shrink wants nothing in progress on streams.
    if (kinds.back() == kStreamSum && (seed & 1) == 0) kinds.back() = kSum;
    if (kinds.back() == kShrink && (seed & 1) == 1) kinds.back() = kSplit;
    own = Mix64(own);
    is_group_end[static_cast<size_t>(i)] = own % 4 == 0 || i == kCalls - 1;
  }
  ccl_stream_t stream = nullptr;
  CHECK_OK(ccl_stream_create(&stream));
  bool in_group = false;
  for (size_t i = 0; i < kCalls; ++i) {
    if (!in_group && !is_group_end[i]) {
      CHECK_OK(ccl_group_start());
      in_group = true;
    }
    values[i] = static_cast<int64_t>(i + 1) << (8 * rank);
    if (kinds[i] == kSplit) {
      CHECK_OK(ccl_comm_split(comm, 0, (rank + static_cast<int>(i)) % kRanks, &made[i], nullptr));
    } else if (kinds[i] == kShrink) {
      CHECK_OK(ccl_comm_shrink(comm, nullptr, 0, &made[i], nullptr, CCL_SHRINK_DEFAULT));
    } else {
      CHECK_OK(ccl_allreduce(&values[i], &values[i], 1, CCL_INT64, CCL_SUM, comm,
                             kinds[i] == kStreamSum ? stream : nullptr));
    }
    if (in_group && is_group_end[i]) {
      CHECK_OK(ccl_group_end());
      in_group = false;
    }
  }
  CHECK_OK(ccl_stream_synchronize(stream));
  CHECK_OK(ccl_stream_destroy(stream));
  for (size_t i = 0; i < kCalls; ++i) {
    const auto number = static_cast<int64_t>(i + 1);
    if (made[i] == nullptr) {
      EXPECT_EQ(values[i], number + (number << 8) + (number << 16)) << "call " << i;
      continue;
    }
    int place = -1;
    CHECK_OK(ccl_comm_user_rank(made[i], &place));
    EXPECT_EQ(place, kinds[i] == kShrink ? rank : (rank + static_cast<int>(i)) % kRanks);
    CHECK_OK(ccl_comm_destroy(made[i]));
  }
}

TEST(GroupOrderTest, GroupsDoNotChangeTheOrderOfCalls) {
  const uint64_t seed = TestSeed();
  for (uint64_t round = 0; round < (kSanitized ? 2 : 6); ++round) {
    SCOPED_TRACE(round);
    RunThreads(3, [&](int rank, ccl_comm_t comm) {
      RandomCalls(rank, comm, (Mix64(seed + round) & ~uint64_t{1}) | (round & 1));
    });
  }
}

// Two threads, each with a communicator of its own, put groups on the same two streams, in opposite
// order.
TEST(GroupOrderTest, TwoGroupsOnTwoStreams) {
  constexpr int kRounds = 3000;
  const Watchdog watchdog(60.0 * kSlowness);
  ccl_comm_t comms[2] = {};
  for (ccl_comm_t& comm : comms) CHECK_OK(ccl_comm_init_all(&comm, 1, nullptr));
  ccl_stream_t streams[2] = {};
  for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
  std::atomic<int> round[2] = {};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      float x = 1, y = 1;
      for (int i = 1; i <= kRounds; ++i) {
        round[t] = i;
        while (round[1 - t] < i) std::this_thread::yield();
        CHECK_OK(ccl_group_start());
        CHECK_OK(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms[t], streams[t]));
        CHECK_OK(ccl_allreduce(&y, &y, 1, CCL_FLOAT32, CCL_SUM, comms[t], streams[1 - t]));
        CHECK_OK(ccl_group_end());
        // Calls outside of groups are in the order, too.
        CHECK_OK(ccl_allreduce(&y, &y, 1, CCL_FLOAT32, CCL_SUM, comms[t], streams[1 - t]));
        CHECK_OK(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comms[t], streams[t]));
      }
      for (ccl_stream_t stream : streams) EXPECT_EQ(ccl_stream_synchronize(stream), CCL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (ccl_stream_t stream : streams) CHECK_OK(ccl_stream_destroy(stream));
  for (ccl_comm_t comm : comms) CHECK_OK(ccl_comm_destroy(comm));
}

// A call that waits behind another communicator's on its stream, which does not end, is an error
// that names both.
TEST(GroupOrderTest, ATurnThatDoesNotComeIsAnError) {
  const Watchdog watchdog(60.0 * kSlowness);
  ccl_comm_t stuck[2] = {}, waiting[3] = {};
  CHECK_OK(ccl_comm_init_all(stuck, 2, nullptr));
  {
    const ScopedEnv limit({{"INCCL_OP_TIMEOUT_MS", "300"}});
    CHECK_OK(ccl_comm_init_all(waiting, 3, nullptr));
  }
  ccl_stream_t stream = nullptr;
  CHECK_OK(ccl_stream_create(&stream));
  float x = 1, y = 1;
  CHECK_OK(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, stuck[1], stream));  // rank 0 never calls
  CHECK_OK(ccl_allreduce(&y, &y, 1, CCL_FLOAT32, CCL_SUM, waiting[2], stream));
  EXPECT_EQ(ccl_comm_finalize(waiting[2]), CCL_TIMEOUT);
  const std::string text = ccl_get_last_error(waiting[2]);
  EXPECT_NE(text.find("rank 2/3"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1/2"), std::string::npos) << text;
  EXPECT_NE(text.find("turn"), std::string::npos) << text;
  EXPECT_NE(text.find("limit 300 ms"), std::string::npos) << text;
  ccl_result_t error = CCL_SUCCESS;
  CHECK_OK(ccl_comm_get_async_error(stuck[1], &error));
  EXPECT_EQ(error, CCL_SUCCESS);
  // The call that was in the way goes on as if nothing had been.
  CHECK_OK(ccl_allreduce(&y, &y, 1, CCL_FLOAT32, CCL_SUM, stuck[0], nullptr));
  EXPECT_EQ(ccl_stream_synchronize(stream), CCL_TIMEOUT);
  EXPECT_EQ(x, 2);
  CHECK_OK(ccl_stream_destroy(stream));
  for (ccl_comm_t comm : stuck) CHECK_OK(ccl_comm_destroy(comm));
  for (ccl_comm_t comm : waiting) CHECK_OK(ccl_comm_destroy(comm));
}

}  // namespace
}  // namespace inccl::test
