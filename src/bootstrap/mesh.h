// SPDX-License-Identifier: Apache-2.0
//
// The result of joining a communicator: an authenticated connection to every other rank, and the
// descriptors that they shared.
#ifndef INCCL_BOOTSTRAP_MESH_H_
#define INCCL_BOOTSTRAP_MESH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"

namespace inccl {

inline constexpr size_t kMaxBlob = 16 * 1024;

struct PeerInfo {
  int rank = -1;
  int pid = 0;
  uint32_t uid = 0;
  std::string host;             // host name
  uint64_t host_id = 0;         // equal on one host and network namespace
  std::vector<std::byte> blob;  // its JoinOptions::blob, unchecked
};

struct Peer {
  PeerInfo info;
  UniqueFd control;           // non-blocking unix stream socket; not valid for this rank itself
  std::vector<UniqueFd> fds;  // its JoinOptions::share_fds, in the same order
};

struct Mesh {
  int rank = 0, nranks = 1;
  std::vector<Peer> peers;  // by rank
  uint64_t nonce_hash = 0;  // equal on all ranks, different for each communicator
};

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_MESH_H_
