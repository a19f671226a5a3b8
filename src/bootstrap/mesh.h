// SPDX-License-Identifier: Apache-2.0
//
// The result of joining a communicator: an authenticated connection to each other rank with which
// the control graph has one, and the descriptors that these ranks shared.
#ifndef INCCL_BOOTSTRAP_MESH_H_
#define INCCL_BOOTSTRAP_MESH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bootstrap/crypto.h"
#include "bootstrap/handshake.h"
#include "bootstrap/socket_list.h"
#include "topology/host_map.h"

namespace inccl {

// Which ranks of a communicator have a control connection with each other. Up to a number of ranks
// all pairs have one. Above it the ranks form a ring with shortcuts: each rank has a connection
// with the ranks at distances of powers of two in both directions, and with all ranks of its host,
// since descriptors of shared memory travel over them. Equal on all ranks.
class ControlGraph {
 public:
  static constexpr int kAllPairs = 64;  // the default of INCCL_TEST_CONTROL_ALL_PAIRS

  ControlGraph() = default;  // of all pairs, whatever their number
  // All pairs up to `all_pairs` ranks.
  ControlGraph(HostMap hosts, int all_pairs);

  // Every pair of ranks has a connection.
  bool complete() const { return complete_; }
  // There are more ranks than `all_pairs`: a rank connects for data when it needs a peer.
  bool large() const { return large_; }
  bool Linked(int a, int b) const;
  // By rank, the neighbour of `from` that comes next on a shortest path over ranks that are not
  // `gone`; -1: there is no path, or the rank is gone. Only if the graph is not complete.
  std::vector<int> NextHops(int from, const std::vector<bool>& gone) const;

 private:
  HostMap hosts_;
  bool complete_ = true, large_ = false;
};

inline constexpr size_t kMaxBlob = 16 * 1024;

struct PeerInfo {
  int rank = -1;
  int pid = 0;
  uint32_t uid = 0;
  std::string host;             // host name
  uint64_t host_id = 0;         // equal on one host, as INCCL_HOSTID defines hosts
  uint64_t machine_id = 0;      // equal on one machine and network namespace
  std::vector<std::byte> blob;  // its JoinOptions::blob, unchecked
  bootstrap::PublicKey key{};   // of its Mesh::data_terms.own
  // Of its connection with the process where the ranks met; 0 over a unix socket.
  uint32_t round_trip_us = 0;
};

struct Peer {
  PeerInfo info;
  // A non-blocking stream socket, of unix on one machine, else of TCP; not valid for this rank
  // itself and for one without a control connection.
  UniqueFd control;
  std::optional<bootstrap::StreamCipher> cipher;  // of `control`, over TCP
  std::vector<UniqueFd> fds;  // on one machine: its JoinOptions::share_fds, in the same order
};

struct Mesh {
  int rank = 0, nranks = 1;
  std::vector<Peer> peers;  // by rank
  ControlGraph graph;
  Sites sites;              // once all ranks have joined
  uint64_t nonce_hash = 0;  // equal on all ranks, different for each communicator
  // For further connections between these ranks: their key, and the communicator's nonce. Its `own`
  // also protects messages to this rank that others pass on.
  bootstrap::HandshakeTerms data_terms;
  // Of the communicator: those that carry control messages, and those of transports.
  std::shared_ptr<SocketList> sockets = std::make_shared<SocketList>();
};

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_MESH_H_
