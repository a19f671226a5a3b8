// SPDX-License-Identifier: Apache-2.0
//
// Joining that succeeds: by id, by launcher, threads and processes, few and many.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <set>

#include "transport/bootstrap_world.h"

namespace inccl::test {
namespace {

// Sends a word over each connection of the mesh and expects the peer's.
void ExpectConnected(const Mesh& mesh) {
  for (int peer = 0; peer < mesh.nranks; ++peer) {
    if (peer == mesh.rank) continue;
    const int word = mesh.rank * 1000 + peer;
    const int fd = mesh.peers[static_cast<size_t>(peer)].control.get();
    ASSERT_EQ(send(fd, &word, sizeof word, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof word));
  }
  for (int peer = 0; peer < mesh.nranks; ++peer) {
    if (peer == mesh.rank) continue;
    int word = 0;
    const int fd = mesh.peers[static_cast<size_t>(peer)].control.get();
    ssize_t got = -1;
    while ((got = recv(fd, &word, sizeof word, MSG_DONTWAIT)) < 0 && errno == EAGAIN) usleep(100);
    ASSERT_EQ(got, static_cast<ssize_t>(sizeof word));
    EXPECT_EQ(word, peer * 1000 + mesh.rank);
  }
}

TEST(JoinTest, ThreadsMeetAndKnowEachOther) {
  const Baseline baseline;
  for (const int n : {1, 2, 3, 8}) {
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    ASSERT_TRUE(id.ok()) << id.status().message();
    std::vector<Result<Mesh>> meshes = JoinThreads(*id, n);
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_TRUE(meshes[static_cast<size_t>(rank)].ok())
          << meshes[static_cast<size_t>(rank)].status().message();
      const Mesh& mesh = *meshes[static_cast<size_t>(rank)];
      EXPECT_EQ(mesh.rank, rank);
      EXPECT_EQ(mesh.nranks, n);
      EXPECT_EQ(mesh.nonce_hash, meshes[0]->nonce_hash);
      ASSERT_EQ(mesh.peers.size(), static_cast<size_t>(n));
      for (int peer = 0; peer < n; ++peer) {
        const Peer& p = mesh.peers[static_cast<size_t>(peer)];
        EXPECT_EQ(p.info.rank, peer);
        EXPECT_EQ(p.info.pid, getpid());
        EXPECT_EQ(p.info.uid, geteuid());
        EXPECT_EQ(p.info.host_id, mesh.peers[0].info.host_id);
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        EXPECT_EQ(p.info.host, host);
        EXPECT_EQ(p.control.valid(), peer != rank);
      }
    }
    OnThreads(n, [&](int rank) { ExpectConnected(*meshes[static_cast<size_t>(rank)]); });
  }
}

TEST(JoinTest, SixtyFourRanksInOneProcessAreQuick) {
  const Baseline baseline;
  const double start = Seconds();
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok()) << id.status().message();
  const std::vector<Result<Mesh>> meshes = JoinThreads(*id, 64);
  for (const Result<Mesh>& mesh : meshes) ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_LT(Seconds() - start, 5.0 * kSlowness);
}

}  // namespace
}  // namespace inccl::test
