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

namespace inccl::test {
namespace {

using Blob = std::vector<std::byte>;

std::vector<Mesh> MakeMeshes(int n) {
  std::vector<Mesh> meshes(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    Mesh& mesh = meshes[static_cast<size_t>(rank)];
    mesh.rank = rank;
    mesh.nranks = n;
    mesh.peers.resize(static_cast<size_t>(n));
    for (int peer = 0; peer < n; ++peer) {
      mesh.peers[static_cast<size_t>(peer)].info.rank = peer;
      mesh.peers[static_cast<size_t>(peer)].info.host = "node";
    }
  }
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (size_t j = i + 1; j < meshes.size(); ++j) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
      meshes[i].peers[j].control.Reset(pair[0]);
      meshes[j].peers[i].control.Reset(pair[1]);
    }
  }
  return meshes;
}

Blob BlobOf(int rank, int round) {
  const size_t sizes[] = {0, 1, 1000, kMaxBlob};
  return Blob(sizes[static_cast<size_t>(rank + round) % 4],
              static_cast<std::byte>(16 * round + rank));
}

ExchangeTerms Within(int ms) {
  return {.deadline = SystemClock().Now() + ms * kMillisecond, .timeout_ms = ms};
}

TEST(ExchangeTest, RoundsOfAllSizes) {
  for (const int n : {1, 2, 5}) {
    const Baseline baseline;
    std::vector<Mesh> meshes = MakeMeshes(n);
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

}  // namespace
}  // namespace inccl::test
