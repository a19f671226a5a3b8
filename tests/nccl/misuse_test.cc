// SPDX-License-Identifier: Apache-2.0
//
// Groups, life cycles and configurations that are wrong, and ends at the wrong moment.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "nccl/ranks.h"

namespace inccl::test {
namespace {

TEST(GroupTest, TwoCommunicatorsOfThreeRanksInOneGroup) {
  constexpr int kRanks = 3;
  NcclComm first[kRanks], second[kRanks];
  NCCL_OK(ncclCommInitAll(first, kRanks, nullptr));
  const int devices[kRanks] = {0, 0, 1};  // several ranks on a device
  NCCL_OK(ncclCommInitAll(second, kRanks, devices));
  int sums[kRanks], products[kRanks], received[kRanks];
  NCCL_OK(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    sums[r] = products[r] = r + 2;
    // In another order on each rank: groups have none between communicators.
    for (const bool one : {r % 2 == 0, r % 2 != 0}) {
      NCCL_OK(ncclAllReduce(one ? &sums[r] : &products[r], one ? &sums[r] : &products[r], 1, kInt32,
                            one ? 0 : 1, one ? first[r] : second[r], nullptr));
    }
    NCCL_OK(ncclGroupStart());  // nested
    NCCL_OK(ncclRecv(&received[r], 1, kInt32, (r + 1) % kRanks, first[r], nullptr));
    NCCL_OK(ncclSend(&devices[r], 1, kInt32, (r + 2) % kRanks, first[r], nullptr));
    NCCL_OK(ncclGroupEnd());
  }
  NCCL_OK(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(sums[r], 9);
    EXPECT_EQ(products[r], 24);
    EXPECT_EQ(received[r], devices[(r + 1) % kRanks]);
    NCCL_OK(ncclCommDestroy(first[r]));
    NCCL_OK(ncclCommDestroy(second[r]));
  }
}

TEST(GroupTest, CreationOfAllRanksInAGroup) {
  UniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  NcclComm comms[3] = {};
  NCCL_OK(ncclGroupStart());
  for (int r = 0; r < 3; ++r) NCCL_OK(ncclCommInitRank(&comms[r], 3, id, r));
  NCCL_OK(ncclGroupEnd());
  NcclComm parts[3] = {};
  NCCL_OK(ncclGroupStart());
  for (int r = 0; r < 3; ++r)
    NCCL_OK(ncclCommSplit(comms[r], r == 1 ? -1 : 0, r, &parts[r], nullptr));
  NCCL_OK(ncclGroupEnd());
  EXPECT_NE(parts[0], nullptr);
  EXPECT_EQ(parts[1], nullptr);
  int count = 0;
  NCCL_OK(ncclCommCount(parts[2], &count));
  EXPECT_EQ(count, 2);
  for (NcclComm comm : parts) NCCL_OK(ncclCommDestroy(comm));
  for (NcclComm comm : comms) NCCL_OK(ncclCommDestroy(comm));
}

TEST(GroupTest, AWrongCallSpoilsItsGroupAndNothingElse) {
  EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
  NcclComm comm = nullptr;
  NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
  int value = 3, result = 7;
  NCCL_OK(ncclGroupStart());
  EXPECT_EQ(ncclAllReduce(&value, &result, 1, kInt32, 99, comm, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &result, 1, kInt32, kSum, comm, nullptr), kSuccess);
  EXPECT_EQ(ncclGroupEnd(), kInvalidArgument);
  EXPECT_EQ(result, 7);
  EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
  EXPECT_EQ(ncclAllReduce(&value, &result, 1, kInt32, kSum, comm, nullptr), kSuccess);
  EXPECT_EQ(result, 3);
  // A send to itself without a receive.
  NCCL_OK(ncclGroupStart());
  (void)ncclSend(&value, 1, kInt32, 0, comm, nullptr);
  EXPECT_NE(ncclGroupEnd(), kSuccess);
  EXPECT_EQ(ncclCommAbort(comm), kSuccess);
}

TEST(LifeCycleTest, HandlesThatHaveEndedAreInvalidArguments) {
  NcclComm comms[2];
  NCCL_OK(ncclCommInitAll(comms, 2, nullptr));
  NCCL_OK(ncclCommDestroy(comms[0]));
  NCCL_OK(ncclCommAbort(comms[1]));
  for (NcclComm comm : comms) {
    int number = 0;
    NcclComm part = nullptr;
    EXPECT_EQ(ncclCommDestroy(comm), kInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), kInvalidArgument);
    EXPECT_EQ(ncclCommFinalize(comm), kInvalidArgument);
    EXPECT_EQ(ncclCommCount(comm, &number), kInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(comm, &number), kInvalidArgument);
    EXPECT_EQ(ncclCommRevoke(comm, 0), kInvalidArgument);
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &part, nullptr), kInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &part, nullptr, 0), kInvalidArgument);
    EXPECT_EQ(Members(comm, 0), 0U);
    EXPECT_TRUE(LastErrorSays("destroyed")) << ncclGetLastError(nullptr);
  }
}

TEST(LifeCycleTest, AbortFromAnotherThreadEndsACallThatWaits) {
  for (int round = 0; round < 10; ++round) {
    NcclComm comms[3];
    NCCL_OK(ncclCommInitAll(comms, 3, nullptr));
    std::atomic<int> done{0};
    std::vector<std::thread> callers;
    for (int r = 0; r < 2; ++r) {  // rank 2 never calls
      callers.emplace_back([&, r] {
        std::vector<float> data(1 << 14);
        const int result =
            ncclAllReduce(data.data(), data.data(), data.size(), kFloat32, kSum, comms[r], nullptr);
        EXPECT_TRUE(result == kRemoteError || result == kInvalidArgument) << result;
        ++done;
      });
    }
    usleep(static_cast<useconds_t>(1000 * round));
    const Clock::time_point start = Clock::now();
    for (NcclComm comm : comms) EXPECT_EQ(ncclCommAbort(comm), kSuccess);
    for (std::thread& caller : callers) caller.join();
    EXPECT_LT(SecondsSince(start), kSoon);
    EXPECT_EQ(done, 2);
  }
}

TEST(LifeCycleTest, RevokedCommunicatorsShrink) {
  Ranks(3, [](int rank, NcclComm comm) {
    EXPECT_EQ(Members(comm, rank), 0b111U);
    if (rank == 0) {
      NCCL_OK(ncclCommRevoke(comm, 0));
    }
    while (Members(comm, rank) != 0) {
    }
    NcclComm part = nullptr;
    int excluded[] = {1};
    if (rank != 1) {
      NCCL_OK(ncclCommShrink(comm, excluded, 1, &part, nullptr, 1));
      EXPECT_EQ(Members(part, rank), 0b101U);
      NCCL_OK(ncclCommDestroy(part));
    }
    NCCL_OK(ncclCommDestroy(comm));
  });
}

// Polled until it is ncclSuccess, a revoked communicator can be split.
TEST(LifeCycleTest, RevokedCommunicatorsSplit) {
  for (const bool blocking : {true, false}) {
    Ranks(4, [&](int rank, NcclComm comm) {
      EXPECT_EQ(Members(comm, rank), 0b1111U);
      NCCL_OK(ncclCommRevoke(comm, 0));
      EXPECT_EQ(WaitUntilSettled(comm), kSuccess);
      EXPECT_EQ(Members(comm, rank), 0U);
      EXPECT_EQ(WaitUntilSettled(comm), kSuccess);
      Config config = DefaultConfig();
      config.blocking = blocking ? 1 : 0;
      NcclComm part = nullptr;
      const int result = ncclCommSplit(comm, rank == 3 ? -1 : rank % 2, -rank, &part, &config);
      ASSERT_TRUE(result == kSuccess || result == kInProgress) << ncclGetLastError(nullptr);
      ASSERT_EQ(part == nullptr, rank == 3);
      if (part != nullptr) {
        ASSERT_EQ(WaitUntilSettled(part), kSuccess);
        EXPECT_EQ(Members(part, rank), rank % 2 == 0 ? 0b0101U : 0b0010U);
        int place = -1;
        NCCL_OK(ncclCommUserRank(part, &place));
        EXPECT_EQ(place, rank == 0 ? 1 : 0);
        NCCL_OK(ncclCommDestroy(part));
      }
      NCCL_OK(ncclCommDestroy(comm));
    });
  }
}

TEST(LifeCycleTest, AnErrorKeepsItsText) {
  std::atomic<int> had_another{0};
  Ranks(3, [&](int rank, NcclComm comm) {
    EXPECT_EQ(Members(comm, rank), 0b111U);
    if (rank == 1) {
      EXPECT_EQ(ncclCommAbort(comm), kSuccess);
      return;
    }
    while (Members(comm, rank) != 0) {
    }
    // Another error of this thread, and one that another thread asks for.
    EXPECT_EQ(ncclGroupEnd(), kInvalidUsage);
    // The last error is the process's, so the other rank's must not come between below.
    for (++had_another; had_another < 2;) usleep(100);
    for (const bool same : {true, false}) {
      const auto ask = [&] {
        int state = kSuccess;
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), kSuccess);
        EXPECT_EQ(state, kRemoteError);
        EXPECT_NE(std::string(ncclGetLastError(comm)).find("rank 1/3"), std::string::npos)
            << ncclGetLastError(comm);
      };
      if (same) {
        ask();
      } else {
        std::thread(ask).join();
      }
    }
    EXPECT_TRUE(LastErrorSays("rank 1/3")) << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclCommAbort(comm), kSuccess);
  });
}

TEST(LifeCycleTest, AShrinkExcludesARank) {
  NcclComm comm = nullptr, part = nullptr;
  NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
  int excluded[] = {0};
  EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &part, nullptr, 0), kInvalidArgument);
  EXPECT_EQ(ncclCommShrink(comm, excluded, 0, &part, nullptr, 0), kInvalidArgument);
  EXPECT_TRUE(LastErrorSays("excludeRanksCount 0")) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommShrink(comm, nullptr, 1, &part, nullptr, 0), kInvalidArgument);
  NCCL_OK(ncclCommDestroy(comm));
}

TEST(LifeCycleTest, SeveralIdsAreOneCommunicator) {
  UniqueId ids[2];
  for (UniqueId& id : ids) NCCL_OK(ncclGetUniqueId(&id));
  NcclComm comm = nullptr;
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 1, 0, 2, ids, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr), kInvalidArgument);
  std::thread other([&] {
    NcclComm mine = nullptr;
    NCCL_OK(ncclCommInitRankScalable(&mine, 2, 1, 2, ids, nullptr));
    EXPECT_EQ(Members(mine, 1), 0b11U);
    NCCL_OK(ncclCommDestroy(mine));
  });
  NCCL_OK(ncclCommInitRankScalable(&comm, 2, 0, 2, ids, nullptr));
  EXPECT_EQ(Members(comm, 0), 0b11U);
  NCCL_OK(ncclCommDestroy(comm));
  other.join();
}

TEST(LifeCycleTest, WrongRanksAndIds) {
  UniqueId id, garbage;
  NCCL_OK(ncclGetUniqueId(&id));
  std::memset(&garbage, 0x5a, sizeof garbage);
  NcclComm comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), kInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), kInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, -1), kInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), kInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 1, garbage, 0), kInvalidArgument);
  EXPECT_EQ(ncclGetUniqueId(nullptr), kInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(nullptr, 1, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(&comm, 0, nullptr), kInvalidArgument);
}

// A configuration at the very end of a page: nothing behind it is read.
TEST(ConfigTest, EveryLengthOfAConfiguration) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory + page, page, PROT_NONE), 0);
  UniqueId id;
  for (size_t bytes = 16; bytes <= sizeof(Config) + 64; bytes += 8) {
    std::vector<std::byte> image(std::max(bytes, sizeof(Config)), std::byte{0xee});
    Config config = DefaultConfig(23007);
    config.size = bytes;
    std::memcpy(image.data(), &config, sizeof config);
    auto* const at = reinterpret_cast<Config*>(memory + page - bytes);
    std::memcpy(static_cast<void*>(at), image.data(), bytes);
    NCCL_OK(ncclGetUniqueId(&id));
    NcclComm comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, at), kSuccess)
        << bytes << ": " << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclCommDestroy(comm), kSuccess);
  }
  munmap(memory, 2 * page);
}

TEST(ConfigTest, WrongOnesAreRefusedBySplitAndShrink) {
  NcclComm comm = nullptr, part = nullptr;
  NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
  Config config = DefaultConfig();
  config.magic = 0;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &part, &config), kInvalidArgument);
  EXPECT_TRUE(LastErrorSays("NCCL_CONFIG_INITIALIZER"));
  config = DefaultConfig();
  config.size = 3;
  EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &part, &config, 0), kInvalidArgument);
  config = DefaultConfig();
  config.blocking = 2;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &part, &config), kInvalidArgument);
  EXPECT_TRUE(LastErrorSays("blocking"));
  // A version before the field: it is not read.
  config.version = 21300;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &part, &config), kSuccess) << ncclGetLastError(nullptr);
  NCCL_OK(ncclCommDestroy(part));
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(ncclCommSplit(comm, -2, 0, &part, nullptr), kInvalidArgument);
  int excluded[] = {0};
  EXPECT_EQ(ncclCommShrink(comm, excluded, 1, &part, nullptr, 0), kInvalidArgument);
  EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &part, nullptr, 8), kInvalidArgument);
  NCCL_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace inccl::test
