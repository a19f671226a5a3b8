// SPDX-License-Identifier: Apache-2.0
//
// The non-blocking life cycle: creation, split, shrink and finalization return ncclInProgress and
// are polled; any of them may be aborted or destroyed meanwhile, also from another thread.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "nccl/ranks.h"

namespace inccl::test {
namespace {

// Whom a rank polls: the parent, as NCCL documents, or the new communicator.
class NonBlockingSplit : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Polled, NonBlockingSplit, ::testing::Values(false, true));

TEST_P(NonBlockingSplit, BothCanBeUsedWhenEitherHasSettled) {
  const bool poll_child = GetParam();
  Ranks(4, [&](int rank, NcclComm comm) {
    for (int round = 0; round < 20; ++round) {
      Config config = NonBlocking();
      NcclComm part = nullptr;
      ASSERT_EQ(ncclCommSplit(comm, rank % 2, -rank, &part, &config), kInProgress);
      ASSERT_NE(part, nullptr);
      ASSERT_EQ(WaitUntilSettled(poll_child ? part : comm), kSuccess);
      EXPECT_EQ(Members(part, rank), rank % 2 == 0 ? 0b0101U : 0b1010U) << ncclGetLastError(part);
      int place = -1;
      NCCL_OK(ncclCommUserRank(part, &place));
      EXPECT_EQ(place, rank < 2 ? 1 : 0);
      EXPECT_EQ(Members(comm, rank), 0b1111U) << ncclGetLastError(comm);
      NCCL_OK(ncclCommDestroy(part));
    }
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(NonBlockingTest, ARankWithoutAColourPollsTheParent) {
  Ranks(3, [](int rank, NcclComm comm) {
    Config config = NonBlocking();
    NcclComm part = comm;
    ASSERT_EQ(ncclCommSplit(comm, rank == 1 ? -1 : 4, rank, &part, &config), kInProgress);
    ASSERT_EQ(part == nullptr, rank == 1);
    ASSERT_EQ(WaitUntilSettled(comm), kSuccess);
    EXPECT_EQ(part == nullptr, rank == 1);
    if (part != nullptr) {
      EXPECT_EQ(Members(part, rank), 0b101U);
      // Without a configuration a split inherits `blocking`.
      NcclComm inner = nullptr;
      EXPECT_EQ(ncclCommSplit(part, 0, rank, &inner, nullptr), kInProgress);
      EXPECT_EQ(WaitUntilSettled(part), kSuccess);
      EXPECT_EQ(Members(inner, rank), 0b101U);
      NCCL_OK(ncclCommDestroy(inner));
      NCCL_OK(ncclCommDestroy(part));
    }
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(NonBlockingTest, CallsOnAParentThatIsBeingDividedAreRefused) {
  std::atomic<int> refused{0};
  Ranks(2, [&](int rank, NcclComm comm) {
    Config config = NonBlocking();
    NcclComm part = nullptr, other = nullptr;
    if (rank == 0) {
      ASSERT_EQ(ncclCommSplit(comm, 0, 0, &part, &config), kInProgress);
      // Rank 1 is not there yet.
      int state = kSuccess, count = 0;
      NCCL_OK(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, kInProgress);
      NCCL_OK(ncclCommGetAsyncError(part, &state));
      EXPECT_EQ(state, kInProgress);
      EXPECT_EQ(Members(comm, rank), 0U);
      EXPECT_TRUE(LastErrorSays("in progress")) << ncclGetLastError(nullptr);
      EXPECT_EQ(Members(part, rank), 0U);
      EXPECT_EQ(ncclCommSplit(comm, 0, 0, &other, &config), kInvalidArgument);
      EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &other, &config, 0), kInvalidArgument);
      EXPECT_EQ(ncclCommFinalize(comm), kInvalidArgument);
      EXPECT_EQ(ncclCommCount(comm, &count), kSuccess);
      EXPECT_EQ(ncclCommCount(part, &count), kInvalidArgument);
      refused = 1;
    } else {
      while (refused == 0) usleep(1000);
      ASSERT_EQ(ncclCommSplit(comm, 0, 0, &part, &config), kInProgress);
    }
    ASSERT_EQ(WaitUntilSettled(comm), kSuccess);
    EXPECT_EQ(Members(part, rank), 0b11U);
    EXPECT_EQ(Members(comm, rank), 0b11U);
    NCCL_OK(ncclCommDestroy(part));
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(NonBlockingTest, ShrinkWithoutARankThatLeaves) {
  Ranks(4, [](int rank, NcclComm comm) {
    EXPECT_EQ(Members(comm, rank), 0b1111U);
    if (rank == 2) {
      NCCL_OK(ncclCommAbort(comm));
      return;
    }
    int excluded[] = {2};
    Config config = NonBlocking();
    NcclComm part = nullptr;
    ASSERT_EQ(ncclCommShrink(comm, excluded, 1, &part, &config, 1), kInProgress)
        << ncclGetLastError(nullptr);
    ASSERT_EQ(WaitUntilSettled(part), kSuccess) << ncclGetLastError(part);
    EXPECT_EQ(Members(part, rank), 0b1011U);
    NCCL_OK(ncclCommDestroy(comm));
    NCCL_OK(ncclCommDestroy(part));
  });
}

// As NCCL's documentation has it: members pass rank -1, the one that made the id passes it, those
// who join pass no communicator.
TEST(NonBlockingTest, GrowByARankInAGroup) {
  NcclComm members[2] = {}, grown[3] = {};
  NCCL_OK(ncclCommInitAll(members, 2, nullptr));
  UniqueId id{};
  NCCL_OK(ncclCommGetUniqueId(members[0], &id));
  Config config = NonBlocking();
  NCCL_OK(ncclGroupStart());
  EXPECT_EQ(ncclCommGrow(members[0], 3, &id, -1, &grown[0], &config), kSuccess);
  EXPECT_EQ(ncclCommGrow(members[1], 3, nullptr, -1, &grown[1], &config), kSuccess);
  EXPECT_EQ(ncclCommGrow(nullptr, 3, &id, 2, &grown[2], &config), kSuccess);
  const int ended = ncclGroupEnd();
  EXPECT_TRUE(ended == kSuccess || ended == kInProgress) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(WaitUntilSettled(grown[rank]), kSuccess) << ncclGetLastError(grown[rank]);
    int place = -1, count = 0;
    NCCL_OK(ncclCommUserRank(grown[rank], &place));
    NCCL_OK(ncclCommCount(grown[rank], &count));
    EXPECT_EQ(place, rank);
    EXPECT_EQ(count, 3);
  }
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] { EXPECT_EQ(Members(grown[rank], rank), 0b111U); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (NcclComm comm : members) NCCL_OK(ncclCommDestroy(comm));
  for (NcclComm comm : grown) NCCL_OK(ncclCommDestroy(comm));
}

// Of the call that ends the parent: abort or destroy.
class EndOfParent : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(By, EndOfParent, ::testing::Values(false, true));

TEST_P(EndOfParent, EndsASplitThatARankDoesNotJoin) {
  const bool abort = GetParam();
  std::atomic<bool> over{false};
  Ranks(3, [&](int rank, NcclComm comm) {
    if (rank == 2) {  // never splits
      while (!over) usleep(1000);
      EXPECT_EQ(ncclCommAbort(comm), kSuccess);
      return;
    }
    Config config = NonBlocking();
    NcclComm part = nullptr;
    ASSERT_EQ(ncclCommSplit(comm, 0, rank, &part, &config), kInProgress);
    usleep(20000);
    const Clock::time_point start = Clock::now();
    std::thread([&] {
      EXPECT_EQ(abort ? ncclCommAbort(comm) : ncclCommDestroy(comm), kSuccess);
    }).join();
    const int state = WaitUntilSettled(part, kSoon);
    EXPECT_EQ(state, kRemoteError) << ncclGetLastError(part);
    EXPECT_LT(SecondsSince(start), kSoon);
    EXPECT_EQ(ncclCommAbort(part), kSuccess);
    EXPECT_EQ(ncclCommAbort(part), kInvalidArgument);
    if (rank == 0) over = true;
  });
}

TEST_P(EndOfParent, TheNewCommunicatorMayEndBeforeItExists) {
  const bool abort = GetParam();
  std::atomic<bool> ended{false};
  Ranks(3, [&](int rank, NcclComm comm) {
    Config config = NonBlocking();
    NcclComm part = nullptr;
    if (rank != 0) {
      while (!ended) usleep(1000);
    }
    ASSERT_EQ(ncclCommSplit(comm, 0, rank, &part, &config), kInProgress);
    if (rank == 0) {
      const Clock::time_point start = Clock::now();
      EXPECT_EQ(abort ? ncclCommAbort(part) : ncclCommDestroy(part), kSuccess);
      EXPECT_LT(SecondsSince(start), kSoon);
      int state = kSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(part, &state), kInvalidArgument);
      ended = true;
    }
    EXPECT_EQ(WaitUntilSettled(comm), kSuccess);
    if (rank != 0) {
      (void)WaitUntilSettled(part);
      EXPECT_EQ(Members(part, rank), 0U);  // it has no rank 0
      EXPECT_EQ(ncclCommAbort(part), kSuccess);
    }
    // The parent goes on.
    EXPECT_EQ(Members(comm, rank), 0b111U) << ncclGetLastError(comm);
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(NonBlockingTest, ARankThatLeavesDuringASplitIsAnErrorOfTheOthers) {
  Ranks(3, [](int rank, NcclComm comm) {
    if (rank == 1) {
      usleep(20000);
      EXPECT_EQ(ncclCommAbort(comm), kSuccess);
      return;
    }
    Config config = NonBlocking();
    NcclComm part = nullptr;
    const int result = ncclCommSplit(comm, 0, rank, &part, &config);
    ASSERT_TRUE(result == kInProgress || result == kRemoteError) << result;
    if (result == kInProgress) {
      EXPECT_EQ(WaitUntilSettled(part, kSoon), kRemoteError);
      EXPECT_EQ(WaitUntilSettled(comm, kSoon), kRemoteError);
      EXPECT_EQ(ncclCommAbort(part), kSuccess);
    }
    EXPECT_EQ(ncclCommAbort(comm), kSuccess);
  });
}

TEST(NonBlockingTest, CreationIsAbortedFromAnotherThread) {
  UniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  Config config = NonBlocking();
  NcclComm comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 1, &config), kInProgress);
  EXPECT_EQ(Members(comm, 1), 0U);
  usleep(20000);
  const Clock::time_point start = Clock::now();
  std::thread([&] { EXPECT_EQ(ncclCommAbort(comm), kSuccess); }).join();
  EXPECT_LT(SecondsSince(start), kSoon);
  int state = kSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), kInvalidArgument);
}

TEST(NonBlockingTest, CreationInAGroupGoesOnAfterIt) {
  UniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  const auto create = [&](int rank) {
    Config config = NonBlocking();
    NcclComm comm = nullptr;
    EXPECT_EQ(ncclGroupStart(), kSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), kSuccess);
    EXPECT_NE(comm, nullptr);
    EXPECT_EQ(ncclGroupEnd(), kInProgress);
    return comm;
  };
  NcclComm first = create(0);  // the other rank is not there yet
  int state = kSuccess;
  NCCL_OK(ncclCommGetAsyncError(first, &state));
  EXPECT_EQ(state, kInProgress);
  NcclComm second = create(1);
  std::thread other([&] {
    ASSERT_EQ(WaitUntilSettled(second), kSuccess) << ncclGetLastError(second);
    EXPECT_EQ(Members(second, 1), 0b11U);
  });
  ASSERT_EQ(WaitUntilSettled(first), kSuccess) << ncclGetLastError(first);
  EXPECT_EQ(Members(first, 0), 0b11U);
  other.join();
  NCCL_OK(ncclCommDestroy(first));
  NCCL_OK(ncclCommDestroy(second));
}

TEST(NonBlockingTest, AFailedCreationSaysWhy) {
  UniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  Config config = NonBlocking();
  NcclComm comms[2] = {};
  for (NcclComm& comm : comms) {  // both are rank 1
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 3, id, 1, &config), kInProgress);
  }
  const Clock::time_point start = Clock::now();
  int state = kInProgress;
  for (size_t i = 0; state == kInProgress && SecondsSince(start) < kSoon; i = 1 - i) {
    NCCL_OK(ncclCommGetAsyncError(comms[i], &state));
    if (state != kInProgress) {
      EXPECT_TRUE(LastErrorSays("rank 1")) << ncclGetLastError(nullptr);
      EXPECT_EQ(std::string(ncclGetLastError(comms[i])), ncclGetLastError(nullptr));
    }
    usleep(500);
  }
  EXPECT_NE(state, kInProgress);
  for (NcclComm comm : comms) EXPECT_EQ(ncclCommAbort(comm), kSuccess);
}

TEST(NonBlockingTest, FinalizationIsPolledAndMayBeAborted) {
  for (const bool abort : {false, true}) {
    UniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    const auto run = [&](int rank) {
      Config config = NonBlocking();
      NcclComm comm = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), kInProgress);
      ASSERT_EQ(WaitUntilSettled(comm), kSuccess);
      EXPECT_EQ(Members(comm, rank), 0b11U);
      EXPECT_EQ(ncclCommFinalize(comm), kInProgress);
      if (abort) {
        std::thread([&] { EXPECT_EQ(ncclCommAbort(comm), kSuccess); }).join();
        return;
      }
      EXPECT_EQ(WaitUntilSettled(comm), kSuccess);
      EXPECT_EQ(ncclCommFinalize(comm), kInvalidArgument);
      EXPECT_EQ(Members(comm, rank), 0U);
      NCCL_OK(ncclCommDestroy(comm));
    };
    std::thread other(run, 1);
    run(0);
    other.join();
  }
}

}  // namespace
}  // namespace inccl::test
