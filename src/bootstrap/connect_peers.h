// SPDX-License-Identifier: Apache-2.0
//
// Connects a rank with its peers. Of every pair the higher rank connects and the lower one accepts;
// both prove that they know the communicator's key. Over unix sockets, which join the ranks of one
// machine, both check that the peer belongs to the same user, and each passes its descriptors to
// the other.
#ifndef INCCL_BOOTSTRAP_CONNECT_PEERS_H_
#define INCCL_BOOTSTRAP_CONNECT_PEERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/address_filter.h"
#include "bootstrap/handshake.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// A connection to make.
struct LinkPlan {
  int peer = 0;
  uint16_t connection = 0;  // number among those with this peer
  std::string peer_name;    // for errors
  // Where the peer listens, in the order to try; all unix or all TCP. The accepting end needs them,
  // too, to know which kind is due.
  std::vector<SocketAddress> addresses;
};

// A connection that has been made.
struct Link {
  UniqueFd fd;
  Key send_key, receive_key;  // of TCP connections
  std::vector<UniqueFd> fds;  // that the peer has passed
};

struct ConnectTerms {
  int rank = 0, nranks = 1;
  HandshakeTerms handshake;
  size_t expected = 0;  // connections that peers may begin at once
  std::vector<int> share_fds;
  Time deadline = kNever;
  int timeout_ms = 0;
  AddressFilter sources;  // of TCP connections; others are refused
  // Called repeatedly with the peers that lack a connection; its error ends the attempt.
  // When `check_fd` becomes readable, it is called at once; -1: none.
  std::function<Status(const std::vector<int>& missing)> check;
  int check_fd = -1;
  // Peers may come late: this rank waits for the greeting of one that it has connected to, and does
  // not end a connection whose handshake has begun. If no address can be connected to for
  // `timeout_ms`, the connection fails. The rank accepts while it awaits a peer only.
  bool patient = false;
  // The plan of a connection that a peer has begun and this rank has not; none: it is refused.
  std::function<std::optional<LinkPlan>(int peer, int connection)> expects;
  // Called with each new socket, so that the owner can wait for it, too.
  std::function<void(int fd)> watch;
};

struct Listener {
  UniqueFd fd;
  bool is_unix = false;
};

// Runs until all connections are made; links->at(i) is that of plans[i], which are in the order of
// peers and numbers. Errors name the peer. After a failure, `open` holds the descriptors; the
// caller closes them only after it has reported the failure, because a peer that sees them closed
// earlier would blame this rank.
Status ConnectPeers(ConnectTerms terms, const std::vector<LinkPlan>& plans,
                    std::vector<Listener> listeners, std::vector<Link>* links,
                    std::vector<UniqueFd>* open);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_CONNECT_PEERS_H_
