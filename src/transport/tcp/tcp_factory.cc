// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_factory.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/connect_peers.h"
#include "bootstrap/exchange.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace inccl {
namespace {

using bootstrap::ConnectTerms;
using bootstrap::Link;
using bootstrap::LinkPlan;
using bootstrap::Listener;
using bootstrap::SocketAddress;

// A peer that says something else before its connections are complete has given them up; what the
// connections carry may come a little later than what it says.
constexpr Time kGiveUpGrace = 5 * kSecond;  // some retransmissions
// Bytes that wait in the kernel beyond what is on its way; more would delay credits.
constexpr int kNotSentBytes = 256 * 1024;
constexpr size_t kFewDescriptors = 16;

// Notices that a peer has gone or given up while connections are made.
class PeerWatch {
 public:
  PeerWatch(const Mesh& mesh, const std::atomic<bool>* cancelled)
      : mesh_(mesh), cancelled_(cancelled), spoke_(mesh.peers.size()) {}

  Status Check(const std::vector<int>& missing);

 private:
  // Where not all pairs have control connections: a neighbour that has gone or failed, since it may
  // have heard of a missing rank that is no neighbour.
  Status CheckNeighbours() const;

  const Mesh& mesh_;
  const std::atomic<bool>* const cancelled_;
  std::vector<Time> spoke_;  // by rank: when it first said something; 0: never
};

std::string NameOf(const PeerInfo& peer) {
  return fmt::format("{}@{}:{}", peer.rank, peer.host, peer.pid);
}

Status Closed(const PeerInfo& peer) {
  return RemoteError(
      fmt::format("peer {} closed its connection while TCP connections were made (process died?)",
                  NameOf(peer)));
}

Status PeerWatch::CheckNeighbours() const {
  std::vector<pollfd> fds;
  for (const Peer& peer : mesh_.peers) {
    fds.push_back(
        {.fd = peer.control.get(), .events = POLLIN | POLLRDHUP, .revents = 0});  // -1: none
  }
  if (poll(fds.data(), fds.size(), 0) <= 0) return Status::Ok();
  for (size_t rank = 0; rank < fds.size(); ++rank) {
    const Peer& peer = mesh_.peers[rank];
    if ((fds[rank].revents & POLLIN) != 0 && SendsError(peer)) {
      return RemoteError(fmt::format("peer {} gave up connecting", NameOf(peer.info)));
    }
    if ((fds[rank].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return Closed(peer.info);
  }
  return Status::Ok();
}

Status PeerWatch::Check(const std::vector<int>& missing) {
  if (cancelled_ != nullptr && cancelled_->load()) {
    return RemoteError("this rank ended the creation of the communicator");
  }
  if (!mesh_.graph.complete()) {
    if (Status status = CheckNeighbours(); !status.ok()) return status;
  }
  std::vector<pollfd> fds;
  for (const int rank : missing) {
    fds.push_back({.fd = mesh_.peers[static_cast<size_t>(rank)].control.get(),
                   .events = POLLIN | POLLRDHUP,
                   .revents = 0});
  }
  if (poll(fds.data(), fds.size(), 0) <= 0) return Status::Ok();
  const Time now = SystemClock().Now();
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const PeerInfo& peer = mesh_.peers[static_cast<size_t>(missing[i])].info;
    if ((fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return Closed(peer);
    Time& spoke = spoke_[static_cast<size_t>(missing[i])];
    if (spoke == 0) spoke = now;
    if (now - spoke > kGiveUpGrace) {
      return RemoteError(fmt::format("peer {} gave up connecting", NameOf(peer)));
    }
  }
  return Status::Ok();
}

class TcpFactory final : public TransportFactory {
 public:
  TcpFactory(const TcpOptions& options, std::unique_ptr<TcpTransport> transport)
      : options_(options), transport_(std::move(transport)) {}

  Status Listen();
  std::vector<std::byte> payload() const override;
  Status Attach(Peer* peer, std::span<const std::byte> payload) override;
  Status Connect(const Mesh& mesh, const ExchangeTerms& terms) override;
  std::unique_ptr<Transport> Take(bool /*alone*/) override { return std::move(transport_); }

 private:
  const TcpOptions options_;
  std::unique_ptr<TcpTransport> transport_;
  std::vector<UniqueIdAddress> addresses_;
  std::vector<Listener> listeners_;
  std::vector<LinkPlan> plans_;  // those of one peer follow each other
};

Status TcpFactory::Listen() {
  Result<std::vector<UniqueIdAddress>> addresses = bootstrap::ChooseAddresses(options_.interfaces);
  if (!addresses.ok()) return addresses.status();
  Result<std::vector<UniqueFd>> listeners =
      bootstrap::ListenAtAll(&*addresses, options_.listen.ports);
  if (!listeners.ok()) return listeners.status();
  for (UniqueFd& listener : *listeners) {
    listeners_.push_back({.fd = std::move(listener), .is_unix = false});
  }
  addresses_ = *std::move(addresses);
  return Status::Ok();
}

std::vector<std::byte> TcpFactory::payload() const {
  ByteWriter writer;
  WriteAddresses(addresses_, &writer);
  return writer.bytes();
}

Status TcpFactory::Attach(Peer* peer, std::span<const std::byte> payload) {
  ByteReader reader(payload);
  std::vector<UniqueIdAddress> theirs;
  if (!ReadAddresses(&reader, &theirs) || reader.remaining() != 0 || theirs.empty()) {
    return InternalError(
        fmt::format("tcp: peer rank {} sent no address to connect to", peer->info.rank));
  }
  LinkPlan plan;
  plan.peer = peer->info.rank;
  plan.peer_name = fmt::format("{}@{}:{}", peer->info.rank, peer->info.host, peer->info.pid);
  for (const UniqueIdAddress& address : theirs) {
    plan.addresses.push_back(SocketAddress::Tcp(address));
  }
  for (int i = 0; i < options_.sockets_per_peer; ++i) {
    plan.connection = static_cast<uint16_t>(i);
    plans_.push_back(plan);
  }
  return Status::Ok();
}

Status TcpFactory::Connect(const Mesh& mesh, const ExchangeTerms& terms) {
  if (options_.protection == tcp::Protection::kNone) {
    Log(LogLevel::kWarn, LogSubsystem::kTransport,
        "rank {}/{}: INCCL_NET_SECURITY=none: nothing protects the data on the network", mesh.rank,
        mesh.nranks);
  }
  PeerWatch watch(mesh, terms.cancelled);
  ConnectTerms connect;
  connect.rank = mesh.rank;
  connect.nranks = mesh.nranks;
  connect.handshake = mesh.data_terms;
  connect.plans = std::move(plans_);
  connect.sources = options_.listen.sources;
  connect.deadline = terms.deadline;
  connect.timeout_ms = terms.timeout_ms;
  connect.check = [&watch](const std::vector<int>& missing) { return watch.Check(missing); };
  // Twice, because connections of strangers wait for their authentication.
  Status room = bootstrap::EnsureDescriptors(2 * connect.plans.size() + kFewDescriptors);
  if (!room.ok()) return room;
  transport_->ShowIn(mesh.sockets);
  std::vector<Link> links;
  std::vector<UniqueFd> open;
  const Status connected = ConnectPeers(connect, std::move(listeners_), &links, &open);
  if (!connected.ok()) return {connected.code(), "tcp: " + connected.message()};
  for (size_t i = 0; i < links.size();) {
    const int peer = connect.plans[i].peer;
    const std::string& name = connect.plans[i].peer_name;
    std::vector<TcpSocket> sockets;
    for (; i < links.size() && connect.plans[i].peer == peer; ++i) {
      // Not everywhere possible, and not necessary.
      (void)setsockopt(links[i].fd.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kNotSentBytes,
                       sizeof kNotSentBytes);
      sockets.push_back({.fd = std::move(links[i].fd),
                         .send_key = links[i].send_key,
                         .receive_key = links[i].receive_key});
    }
    for (const TcpSocket& socket : sockets) {
      mesh.sockets->Add(peer, SocketList::Use::kData, socket.fd.get());
    }
    Status status = transport_->Attach(peer, std::move(sockets), name);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeTcpFactory(int rank, int nranks,
                                                         const TcpOptions& options) {
  Result<std::unique_ptr<TcpTransport>> transport =
      TcpTransport::Create(rank, nranks, options.protection);
  if (!transport.ok()) return transport.status();
  auto factory = std::make_unique<TcpFactory>(options, *std::move(transport));
  if (Status status = factory->Listen(); !status.ok()) return status;
  return std::unique_ptr<TransportFactory>(std::move(factory));
}

}  // namespace inccl
