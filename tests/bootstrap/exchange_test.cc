// SPDX-License-Identifier: Apache-2.0
//
// What ranks give each other at the rendezvous while they join: blobs of all sizes arrive at all
// ranks; who fails, leaves or says nothing meanwhile is named to the others.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/messages.h"

namespace inccl::test {
namespace {

using bootstrap::Blobs;
using bootstrap::RendezvousClient;

std::vector<std::byte> BlobOf(int rank, int round) {
  const size_t sizes[] = {0, 1, 1000, kMaxBlob};
  return std::vector<std::byte>(sizes[static_cast<size_t>(rank + round) % 4],
                                static_cast<std::byte>(rank * 16 + round));
}

// Joins n threads, whose ranks run `prepare`.
std::vector<Result<Mesh>> Prepare(
    int n, const std::function<Status(int rank, RendezvousClient* rendezvous)>& prepare,
    int timeout_ms = 20000 * kSlowness) {
  Result<UniqueId> id = CreateUniqueId(TestEnvironment(timeout_ms));
  EXPECT_TRUE(id.ok());
  return JoinThreads(*id, n, [&](JoinOptions* options) {
    options->timeout_ms = timeout_ms;
    options->deadline = SystemClock().Now() + timeout_ms * kMillisecond;
    options->all_pairs = 5;
    options->prepare = [&prepare, rank = options->rank](Mesh*, RendezvousClient* rendezvous) {
      return prepare(rank, rendezvous);
    };
  });
}

TEST(ExchangeTest, RoundsOfAllSizes) {
  for (const int n : {1, 2, 5, 6, 23}) {
    const Baseline baseline;
    const auto meshes = Prepare(n, [n](int rank, RendezvousClient* rendezvous) {
      for (int round = 0; round < 4; ++round) {
        const Result<Blobs> all = rendezvous->Exchange(BlobOf(rank, round));
        if (!all.ok()) return all.status();
        EXPECT_EQ(all->size(), static_cast<size_t>(n));
        for (int peer = 0; peer < n; ++peer) {
          EXPECT_EQ((*all)[static_cast<size_t>(peer)], BlobOf(peer, round));
        }
      }
      return Status::Ok();
    });
    for (const Result<Mesh>& mesh : meshes) EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

TEST(ExchangeTest, TooLargeABlobIsRefused) {
  const Baseline baseline;
  const auto meshes = Prepare(3, [](int rank, RendezvousClient* rendezvous) {
    return rendezvous->Exchange(std::vector<std::byte>(rank == 1 ? kMaxBlob + 1 : 3)).status();
  });
  EXPECT_EQ(meshes[1].status().code(), Code::kInvalidArgument);
  for (const int rank : {0, 2}) {
    EXPECT_CONTAINS(meshes[static_cast<size_t>(rank)].status().message(), "rank 1@");
    EXPECT_CONTAINS(meshes[static_cast<size_t>(rank)].status().message(), "blob of 16385 bytes");
  }
}

// The others hear of it at once, whether they wait for a blob, for the end or for something else.
TEST(ExchangeTest, ARankThatFailsIsNamed) {
  const Baseline baseline;
  for (const int others_do : {0, 1, 2}) {
    const double start = Seconds();
    const auto meshes = Prepare(4, [&](int rank, RendezvousClient* rendezvous) -> Status {
      if (rank == 2) return SystemError("no luck");
      if (others_do == 0) return Status::Ok();
      if (others_do == 1) return rendezvous->Exchange({}).status();
      while (rendezvous->Check().ok()) usleep(1000);
      return rendezvous->Check();
    });
    EXPECT_LT(Seconds() - start, 10.0 * kSlowness) << "long before the deadline";
    for (int rank = 0; rank < 4; ++rank) {
      const Status& status = meshes[static_cast<size_t>(rank)].status();
      EXPECT_EQ(status.code(), Code::kSystemError) << status.message();
      EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + "/4: init: ");
      EXPECT_CONTAINS(status.message(), "no luck");
      if (rank != 2) {
        EXPECT_CONTAINS(status.message(), "rank 2@");
      }
    }
  }
}

// All ranks come to the same result by themselves: none blames another.
TEST(ExchangeTest, WhatAllRanksFindIsNobodysFailure) {
  const auto meshes = Prepare(4, [](int, RendezvousClient* rendezvous) {
    EXPECT_TRUE(rendezvous->Exchange({}).ok());
    return InvalidUsage("no common transport");
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(meshes[static_cast<size_t>(rank)].status().message(),
              "rank " + std::to_string(rank) + "/4: init: no common transport");
  }
}

TEST(ExchangeTest, SilenceIsATimeoutThatNamesTheSilent) {
  constexpr int kLimit = 500 * kSlowness;
  for (const bool comes : {true, false}) {
    const auto meshes = Prepare(
        12,
        [&](int rank, RendezvousClient* rendezvous) -> Status {
          if (rank == 5) usleep(2000 * kLimit);
          return comes ? Status::Ok() : rendezvous->Exchange({}).status();
        },
        kLimit);
    for (const Result<Mesh>& mesh : meshes) {
      EXPECT_EQ(mesh.status().code(), Code::kTimeout) << mesh.status().message();
      EXPECT_CONTAINS(mesh.status().message(),
                      comes ? "rank 5 of 12 did not complete" : "no word from rank 5 of 12 about");
    }
  }
}

// Its connections close.
TEST(ExchangeTest, ARankThatDiesIsNamed) {
  constexpr int kRanks = 4;
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  Processes processes;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    pids.push_back(processes.Start([&, rank] {
      JoinOptions options = Options(rank, kRanks);
      options.prepare = [rank](Mesh*, RendezvousClient* rendezvous) {
        EXPECT_TRUE(rendezvous->Exchange({}).ok());
        if (rank == 1) _exit(9);
        return rendezvous->Exchange({}).status();
      };
      const Status status = JoinWithId(*id, options).status();
      EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
      EXPECT_CONTAINS(status.message(), "peer 1@");
      return 0;
    }));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const int status = processes.Wait(pids[static_cast<size_t>(rank)]);
    EXPECT_EQ(rank == 1 ? WEXITSTATUS(status) : status, rank == 1 ? 9 : 0);
  }
}

TEST(ExchangeTest, EndsWhenItIsCancelled) {
  std::atomic<bool> cancelled{false};
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  std::thread canceller([&] {
    usleep(100000);
    cancelled.store(true);
  });
  const auto meshes = JoinThreads(*id, 2, [&](JoinOptions* options) {
    options->cancelled = options->rank == 1 ? &cancelled : nullptr;
    options->prepare = [rank = options->rank](Mesh*, RendezvousClient* rendezvous) {
      while (rank == 0 && rendezvous->Check().ok()) usleep(1000);
      return rank == 0 ? rendezvous->Check() : rendezvous->Exchange({}).status();
    };
  });
  canceller.join();
  EXPECT_CONTAINS(meshes[1].status().message(), "this rank ended the creation");
  EXPECT_CONTAINS(meshes[0].status().message(), "1@");
}

TEST(BlobsTest, MalformedOnesAreRefused) {
  const Blobs blobs = {BlobOf(2, 0), BlobOf(0, 0), BlobOf(1, 0)};
  std::vector<std::byte> bytes = bootstrap::EncodeBlobs(blobs);
  const Result<Blobs> back = bootstrap::DecodeBlobs(bytes, 3);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, blobs);
  EXPECT_FALSE(bootstrap::DecodeBlobs(bytes, 2).ok());
  EXPECT_FALSE(bootstrap::DecodeBlobs(bytes, 4).ok());
  EXPECT_FALSE(bootstrap::DecodeBlobs(std::span(bytes).first(bytes.size() - 1), 3).ok());
  bytes[0] = bytes[1] = bytes[2] = bytes[3] = std::byte{255};
  EXPECT_FALSE(bootstrap::DecodeBlobs(bytes, 3).ok());
}

}  // namespace
}  // namespace inccl::test
