// SPDX-License-Identifier: Apache-2.0
//
// The data connections of a rank that are not made yet: which peers there are, and the state of the
// connections that are being made. Of two ranks the higher one connects. No call blocks unless its
// caller asks for it. One thread at a time.
#ifndef INCCL_TRANSPORT_TCP_TCP_CONNECTOR_H_
#define INCCL_TRANSPORT_TCP_TCP_CONNECTOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/connect_peers.h"
#include "bootstrap/connector.h"
#include "bootstrap/unique_id.h"

namespace inccl::tcp {

class PeerConnector {
 public:
  struct Options {
    int rank = 0, nranks = 1;
    bootstrap::HandshakeTerms handshake = {};
    bootstrap::AddressFilter sources = {};  // whose connections this rank accepts
    int sockets_per_peer = 1;
    int timeout_ms = 0;  // for the first connection that reaches a peer
  };
  struct PeerPlan {
    std::string name = {};  // "1@host:pid", for errors
    std::vector<UniqueIdAddress> addresses = {};
  };

  // `peers`, by rank, are those that may connect. Each socket is added to the epoll descriptor,
  // which outlives the connector, with the data nullptr; the owner then calls SetReady.
  PeerConnector(const Options& options, std::vector<bootstrap::Listener> listeners,
                const std::map<int, PeerPlan>& peers, int epoll);

  bool Has(int peer) const { return peers_.contains(peer); }
  const std::string& NameOf(int peer) const { return peers_.at(peer).plan.name; }
  int sockets_per_peer() const { return options_.sockets_per_peer; }
  // Makes the connections with this peer that have not begun yet.
  void Begin(int peer);
  void SetReady() { ready_ = true; }
  // Whether a socket is ready that the last Poll has not handled.
  bool ready() const { return ready_; }
  bool Due(Time now) const { return ready_ || blind_ || now >= next_; }
  // As bootstrap::Connector::Poll.
  void Poll(Time until);
  std::vector<bootstrap::Connector::Ended> TakeEnded();
  // The peers that lack a connection which has begun, each once.
  std::vector<int> Missing() const { return connector_.Missing(); }
  std::string LastFailure() const { return connector_.LastFailure(); }
  // All connections with all peers have been made, or have failed.
  bool complete() const { return ended_ == peers_.size() * sockets(); }

 private:
  struct PeerState {
    PeerPlan plan;
    uint32_t begun = 0;  // bit i: connection i, by either end
  };

  size_t sockets() const { return static_cast<size_t>(options_.sockets_per_peer); }
  bootstrap::ConnectTerms Terms(size_t peers, int epoll);
  bootstrap::LinkPlan PlanOf(int peer, const PeerState& state, int connection) const;
  // A peer has begun this connection, and this rank has not.
  std::optional<bootstrap::LinkPlan> Expects(int peer, int connection);

  const Options options_;
  std::map<int, PeerState> peers_;
  bool blind_ = false;  // the epoll descriptor does not have all sockets
  const bootstrap::ConnectTerms terms_;
  bootstrap::Connector connector_;
  size_t ended_ = 0;
  bool ready_ = true;
  Time next_ = 0;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_CONNECTOR_H_
