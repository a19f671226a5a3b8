// SPDX-License-Identifier: Apache-2.0
//
// Rounds of blobs over the connections of a mesh.
#include "bootstrap/exchange.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/bytes.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/meshes.h"

namespace inccl::test {
namespace {

using Blob = std::vector<std::byte>;

Blob BlobOf(int rank, int round) {
  const size_t sizes[] = {0, 1, 1000, kMaxBlob};
  return Blob(sizes[static_cast<size_t>(rank + round) % 4],
              static_cast<std::byte>(16 * round + rank));
}

ExchangeTerms Within(int ms) {
  return {.deadline = SystemClock().Now() + ms * kMillisecond, .timeout_ms = ms};
}

TEST(ExchangeTest, RoundsOfAllSizes) {
  // All pairs have connections up to 5 ranks; then not.
  for (const int n : {1, 2, 5, 6, 8, 11, 16, 23}) {
    const Baseline baseline;
    std::vector<Mesh> meshes = MakeMeshes(n, 5);
    EXPECT_EQ(meshes[0].graph.complete(), n <= 5);
    OnThreads(n, [&](int rank) {
      for (int round = 0; round < 4; ++round) {
        const auto all =
            ExchangeBlobs(&meshes[static_cast<size_t>(rank)], BlobOf(rank, round), Within(20000));
        ASSERT_TRUE(all.ok()) << all.status().message();
        ASSERT_EQ(all->size(), static_cast<size_t>(n));
        for (int peer = 0; peer < n; ++peer) {
          EXPECT_EQ((*all)[static_cast<size_t>(peer)], BlobOf(peer, round));
        }
      }
    });
  }
}

// What a peer sends afterwards belongs to the next reader of the connection.
TEST(ExchangeTest, ReadsNoByteTooMany) {
  std::vector<Mesh> meshes = MakeMeshes(2);
  ByteWriter message;
  message.U32(3);
  message.Raw(std::as_bytes(std::span("abcmore", 7)));
  const int peer = meshes[1].peers[0].control.get();
  ASSERT_EQ(send(peer, message.bytes().data(), message.bytes().size(), 0), 11);
  const auto all = ExchangeBlobs(&meshes[0], {}, Within(20000));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)[1].size(), 3u);
  char rest[16] = "";
  EXPECT_EQ(recv(meshes[0].peers[1].control.get(), rest, sizeof rest, 0), 4);
  EXPECT_STREQ(rest, "more");
}

TEST(ExchangeTest, TooLargeABlobIsRefusedOnBothSides) {
  std::vector<Mesh> meshes = MakeMeshes(2);
  EXPECT_EQ(ExchangeBlobs(&meshes[0], Blob(kMaxBlob + 1), Within(20000)).status().code(),
            Code::kInvalidArgument);
  for (const uint32_t length : {static_cast<uint32_t>(kMaxBlob + 1), UINT32_MAX}) {
    meshes = MakeMeshes(2);
    ByteWriter message;
    message.U32(length);
    ASSERT_EQ(send(meshes[1].peers[0].control.get(), message.bytes().data(), 4, 0), 4);
    const Status status = ExchangeBlobs(&meshes[0], {}, Within(20000)).status();
    EXPECT_EQ(status.code(), Code::kInternalError);
    EXPECT_CONTAINS(status.message(), "rank 0/2: init: peer 1@node");
    EXPECT_CONTAINS(status.message(), std::to_string(length));
  }
}

TEST(ExchangeTest, APeerThatLeavesIsNamed) {
  for (const size_t sent : {0, 2, 6}) {
    std::vector<Mesh> meshes = MakeMeshes(3);
    const char message[] = {9, 0, 0, 0, 'x', 'y'};
    ASSERT_EQ(send(meshes[2].peers[0].control.get(), message, sent, 0), static_cast<ssize_t>(sent));
    meshes[2].peers[0].control.Reset();
    const Status status = ExchangeBlobs(&meshes[0], Blob(100), Within(20000)).status();
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_CONTAINS(status.message(), "peer 2@node");
  }
}

TEST(ExchangeTest, SilenceIsATimeoutThatNamesTheSilent) {
  std::vector<Mesh> meshes = MakeMeshes(3);
  ByteWriter empty;
  empty.U32(0);
  ASSERT_EQ(send(meshes[1].peers[0].control.get(), empty.bytes().data(), 4, 0), 4);
  const double start = Seconds();
  const Status status = ExchangeBlobs(&meshes[0], {}, Within(100)).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_CONTAINS(status.message(), "rank 2");
  EXPECT_CONTAINS(status.message(), "100 ms");
  EXPECT_LT(Seconds() - start, 2.0 * kSlowness);
}

TEST(ExchangeTest, TheSilentAreNamedBeforeTheLimit) {
  const LogFile log;
  std::vector<Mesh> meshes = MakeMeshes(3);
  ByteWriter empty;
  empty.U32(0);
  ASSERT_EQ(send(meshes[1].peers[0].control.get(), empty.bytes().data(), 4, 0), 4);
  ExchangeTerms terms = Within(60000);
  std::atomic<bool> cancelled{false};
  terms.cancelled = &cancelled;
  terms.patience = 20 * kMillisecond;
  std::thread reader([&] {
    EXPECT_CONTAINS(log.Await("still waiting"),
                    "WARN init: still waiting, after 20 ms, for rank 2 to say something about the "
                    "transport; the limit is 60000 ms");
    cancelled.store(true);
  });
  EXPECT_EQ(ExchangeBlobs(&meshes[0], {}, terms).status().code(), Code::kRemoteError);
  reader.join();
}

TEST(ExchangeTest, EndsWhenItIsCancelled) {
  std::vector<Mesh> meshes = MakeMeshes(2);
  std::atomic<bool> cancelled{false};
  std::thread canceller([&] {
    usleep(50000);
    cancelled.store(true);
  });
  ExchangeTerms terms = Within(60000);
  terms.cancelled = &cancelled;
  EXPECT_EQ(ExchangeBlobs(&meshes[0], {}, terms).status().code(), Code::kRemoteError);
  canceller.join();
}

// In a sparse graph, where most ranks have no connection to the one that fails.
TEST(ExchangeTest, AllNameTheRankThatLeaves) {
  constexpr int kRanks = 12, kVictim = 5;
  for (const size_t sent : {0, 2, 7}) {
    std::vector<Mesh> meshes = MakeMeshes(kRanks, 1);
    ASSERT_FALSE(meshes[0].graph.Linked(kVictim + 6, kVictim));
    const char message[] = {9, 0, 0, 0, 'x', 'y', 'z'};
    OnThreads(kRanks, [&](int rank) {
      Mesh& mesh = meshes[static_cast<size_t>(rank)];
      if (rank == kVictim) {
        const int fd = mesh.peers[kVictim - 1].control.get();
        EXPECT_EQ(send(fd, message, sent, 0), static_cast<ssize_t>(sent));
      } else {
        const Status status = ExchangeBlobs(&mesh, Blob(100), Within(20000)).status();
        EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
        EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + "/12: init: peer ");
        EXPECT_CONTAINS(status.message(), "peer 5@node");
      }
      mesh.peers.clear();
    });
  }
}

// Whether the next message of a neighbour is the error of a rank that has failed: the highest bit
// of its length.
bool SendsError(const Peer& peer) {
  std::array<uint8_t, 4> length{};
  return recv(peer.control.get(), length.data(), length.size(), MSG_PEEK | MSG_DONTWAIT) == 4 &&
         (length[3] & 0x80) != 0;
}

TEST(ExchangeTest, MalformedBlobsOfAStepAreRefused) {
  // Rank 3 gets the blobs of ranks 5 and 6 from rank 5, in the second step.
  struct Case {
    std::vector<uint32_t> lengths;
    size_t bytes;
    const char* text;
  };
  for (const Case& bad : {Case{{3}, 3, "malformed"}, Case{{3, 4}, 3, "malformed"},
                          Case{{0, 0}, 1, "malformed"}, Case{{UINT32_MAX, 0}, 0, "malformed"},
                          Case{{1, static_cast<uint32_t>(kMaxBlob) + 1}, 1, "malformed"}}) {
    std::vector<Mesh> meshes = MakeMeshes(8, 1);
    ByteWriter first, second;
    first.U32(4);
    first.U32(0);
    for (const uint32_t length : bad.lengths) second.U32(length);
    for (size_t i = 0; i < bad.bytes; ++i) second.U8(7);
    ByteWriter framed;
    framed.U32(static_cast<uint32_t>(second.bytes().size()));
    framed.Raw(second.bytes());
    ASSERT_GT(send(meshes[4].peers[3].control.get(), first.bytes().data(), 8, 0), 0);
    ASSERT_GT(
        send(meshes[5].peers[3].control.get(), framed.bytes().data(), framed.bytes().size(), 0), 0);
    const Status status = ExchangeBlobs(&meshes[3], {}, Within(20000)).status();
    EXPECT_EQ(status.code(), Code::kInternalError);
    EXPECT_CONTAINS(status.message(), "rank 3/8: init: peer 5@node");
    EXPECT_CONTAINS(status.message(), bad.text);
    // Its neighbours hear of it.
    EXPECT_TRUE(SendsError(meshes[7].peers[3]));
    EXPECT_FALSE(SendsError(meshes[2].peers[3])) << "blobs come first";
  }
}

}  // namespace
}  // namespace inccl::test
