// SPDX-License-Identifier: Apache-2.0
//
// Ends of the transport tcp of one process that connect when a lane is opened, on loopback.
#ifndef INCCL_TESTS_SUPPORT_TCP_ENDS_H_
#define INCCL_TESTS_SUPPORT_TCP_ENDS_H_

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace inccl::test {

struct TcpEnds {
  bootstrap::HandshakeTerms handshake;                      // of all data connections
  std::vector<std::shared_ptr<bootstrap::ServerKey>> keys;  // by rank
  std::vector<UniqueIdAddress> addresses;                   // where each rank listens
  std::vector<std::unique_ptr<TcpTransport>> ends;
};

// `timeout_ms`: PeerConnector::Options::timeout_ms.
inline TcpEnds MakeTcpOnDemand(int nranks, tcp::Protection protection, int sockets,
                               int timeout_ms = 60000) {
  const auto require = [](const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  };
  TcpEnds made;
  bootstrap::Mac key{};
  key[0] = std::byte{77};
  made.handshake = {.key = bootstrap::Key(key), .role = bootstrap::Role::kData};
  std::vector<UniqueFd> listeners;
  for (int rank = 0; rank < nranks; ++rank) {
    UniqueIdAddress address;
    address.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
    Result<UniqueFd> listener = bootstrap::ListenAt(&address);
    require(listener.status());
    listeners.push_back(*std::move(listener));
    made.addresses.push_back(address);
    Result<std::shared_ptr<bootstrap::ServerKey>> own = bootstrap::ServerKey::Create();
    require(own.status());
    made.keys.push_back(*std::move(own));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    Result<std::unique_ptr<TcpTransport>> end = TcpTransport::Create(rank, nranks, protection);
    require(end.status());
    std::map<int, tcp::PeerConnector::PeerPlan> peers;
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank) continue;
      peers[peer] = {.name = std::to_string(peer) + "@host:1",
                     .addresses = {made.addresses[static_cast<size_t>(peer)]},
                     .key = made.keys[static_cast<size_t>(peer)]->public_key()};
    }
    bootstrap::HandshakeTerms handshake = made.handshake;
    handshake.own = made.keys[static_cast<size_t>(rank)];
    std::vector<bootstrap::Listener> listener;
    listener.push_back({.fd = std::move(listeners[static_cast<size_t>(rank)]), .is_unix = false});
    (*end)->ConnectWhenNeeded(std::make_unique<tcp::PeerConnector>(
        tcp::PeerConnector::Options{.rank = rank,
                                    .nranks = nranks,
                                    .handshake = std::move(handshake),
                                    .sockets_per_peer = sockets,
                                    .timeout_ms = timeout_ms},
        std::move(listener), std::move(peers), (*end)->epoll()));
    made.ends.push_back(*std::move(end));
  }
  return made;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_TCP_ENDS_H_
