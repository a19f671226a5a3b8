// SPDX-License-Identifier: Apache-2.0
//
// Connects every pair of ranks: rank i connects to every j < i, both prove that they know the
// communicator's key and belong to one user (and container), and each passes the other its
// descriptors.
#ifndef INCCL_BOOTSTRAP_MESH_BUILDER_H_
#define INCCL_BOOTSTRAP_MESH_BUILDER_H_

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/handshake.h"
#include "bootstrap/mesh.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {

struct MeshTerms {
  int rank = 0, nranks = 1;
  HandshakeTerms handshake;  // role kMesh, key and nonce of this communicator
  std::vector<RankRecord> ranks;
  std::vector<int> share_fds;
  Time deadline = kNever;
  int timeout_ms = 0;
  bool any_namespace = false;  // else peers in other containers are refused
};

// Until all connections are made, watching the rendezvous for news of the others' failure. Fills
// control and fds of `peers`, which has an entry per rank. Errors name the peer.
// After a failure `open` has the descriptors, to be closed once the failure has been told: a peer
// that found them closed before would take this rank for the one that began it.
Status BuildMesh(const MeshTerms& terms, UniqueFd listener, RendezvousClient* root,
                 std::vector<Peer>* peers, std::vector<UniqueFd>* open);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_MESH_BUILDER_H_
