// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_connector.h"

#include <sys/epoll.h>

#include <utility>

#include "bootstrap/socket.h"

namespace inccl::tcp {

using bootstrap::Connector;
using bootstrap::ConnectTerms;
using bootstrap::LinkPlan;
using bootstrap::Listener;

ConnectTerms PeerConnector::Terms(size_t peers, int epoll) {
  ConnectTerms terms;
  terms.rank = options_.rank;
  terms.nranks = options_.nranks;
  terms.handshake = options_.handshake;
  terms.expected = peers * sockets();
  terms.timeout_ms = options_.timeout_ms;
  terms.sources = options_.sources;
  terms.patient = true;
  terms.expects = [this](int peer, int connection) { return Expects(peer, connection); };
  terms.watch = [this, epoll](int fd) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = nullptr;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) blind_ = true;
  };
  return terms;
}

PeerConnector::PeerConnector(const Options& options, std::vector<Listener> listeners,
                             const std::map<int, PeerPlan>& peers, int epoll)
    : options_(options),
      terms_(Terms(peers.size(), epoll)),
      connector_(&terms_, std::move(listeners)) {
  for (const auto& [peer, plan] : peers) peers_[peer].plan = plan;
}

LinkPlan PeerConnector::PlanOf(int peer, const PeerState& state, int connection) const {
  LinkPlan plan{.peer = peer,
                .connection = static_cast<uint16_t>(connection),
                .peer_name = state.plan.name,
                .addresses = {}};
  for (const UniqueIdAddress& address : state.plan.addresses) {
    plan.addresses.push_back(bootstrap::SocketAddress::Tcp(address));
  }
  return plan;
}

void PeerConnector::Begin(int peer) {
  PeerState& state = peers_.at(peer);
  for (int i = 0; i < options_.sockets_per_peer; ++i) {
    const uint32_t bit = 1u << i;
    if ((state.begun & bit) != 0) continue;
    state.begun |= bit;
    connector_.Begin(PlanOf(peer, state, i));
    ready_ = true;
  }
}

std::optional<LinkPlan> PeerConnector::Expects(int peer, int connection) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || peer <= options_.rank || connection >= options_.sockets_per_peer) {
    return std::nullopt;
  }
  const uint32_t bit = 1u << connection;
  if ((found->second.begun & bit) != 0) return std::nullopt;
  return PlanOf(peer, found->second, connection);
}

void PeerConnector::Poll(Time until) {
  const Result<int> handled = connector_.Poll(until);
  ready_ = handled.value() > 0;  // more may have come since
  next_ = connector_.NextTime();
}

std::vector<Connector::Ended> PeerConnector::TakeEnded() {
  std::vector<Connector::Ended> ended = connector_.TakeEnded();
  for (const Connector::Ended& end : ended) {
    peers_.at(end.plan.peer).begun |= 1u << end.plan.connection;
  }
  ended_ += ended.size();
  return ended;
}

}  // namespace inccl::tcp
