// SPDX-License-Identifier: Apache-2.0
//
// Connects every pair of ranks: rank i connects to every rank j < i, both prove that they know the
// communicator's key and belong to the same user (and container), and each passes its descriptors
// to the other.
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
  bool any_namespace = false;  // false: refuse peers in other containers
};

// Runs until all connections are made; meanwhile watches the rendezvous for failures of other
// ranks. Fills control and fds of `peers`, which has an entry per rank. Errors name the peer. After
// a failure, `open` holds the descriptors; the caller closes them only after it has reported the
// failure, because a peer that sees them closed earlier would blame this rank.
Status BuildMesh(const MeshTerms& terms, UniqueFd listener, RendezvousClient* root,
                 std::vector<Peer>* peers, std::vector<UniqueFd>* open);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_MESH_BUILDER_H_
