// SPDX-License-Identifier: Apache-2.0
//
// Meshes as joining makes them, of socket pairs in this process.
#ifndef INCCL_TESTS_BOOTSTRAP_MESHES_H_
#define INCCL_TESTS_BOOTSTRAP_MESHES_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <utility>
#include <vector>

#include "bootstrap/mesh.h"

namespace inccl::test {

// Each rank is on a host of its own; all pairs have connections up to `all_pairs` ranks.
inline std::vector<Mesh> MakeMeshes(int n, int all_pairs = ControlGraph::kAllPairs) {
  std::vector<uint64_t> hosts;
  for (int rank = 0; rank < n; ++rank) hosts.push_back(static_cast<uint64_t>(rank));
  std::vector<Mesh> meshes(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    Mesh& mesh = meshes[static_cast<size_t>(rank)];
    mesh.rank = rank;
    mesh.nranks = n;
    mesh.graph = ControlGraph(HostMap(hosts), all_pairs);
    mesh.peers.resize(static_cast<size_t>(n));
    Result<std::shared_ptr<bootstrap::ServerKey>> key = bootstrap::ServerKey::Create();
    EXPECT_TRUE(key.ok());
    mesh.data_terms.own = *std::move(key);
  }
  for (Mesh& mesh : meshes) {
    for (size_t peer = 0; peer < mesh.peers.size(); ++peer) {
      PeerInfo& info = mesh.peers[peer].info;
      info.rank = static_cast<int>(peer);
      info.host = "node";
      info.host_id = peer;
      info.key = meshes[peer].data_terms.own->public_key();
    }
  }
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (size_t j = i + 1; j < meshes.size(); ++j) {
      if (!meshes[i].graph.Linked(static_cast<int>(i), static_cast<int>(j))) continue;
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
      meshes[i].peers[j].control.Reset(pair[0]);
      meshes[j].peers[i].control.Reset(pair[1]);
    }
  }
  return meshes;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_BOOTSTRAP_MESHES_H_
