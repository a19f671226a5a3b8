// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/connector.h"
#include "bootstrap/gathering.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace inccl {
namespace {

using bootstrap::Listener;
using tcp::PeerConnector;

constexpr size_t kFewDescriptors = 16;
// Over long links a connection carries no more than this at a time where its buffers stay small.
// Several recover sooner from losses and from pauses, after which each begins slowly. A rank makes
// at most so many, unless it has as many peers.
constexpr uint64_t kBytesOfSocket = uint64_t{4} << 20;
constexpr uint64_t kFewSockets = 4, kManySockets = 16, kMostSockets = 256;

int SocketsFor(uint64_t under_way, size_t peers) {
  if (under_way == 0) return 1;
  const uint64_t most = std::max<uint64_t>(1, kMostSockets / std::max<size_t>(1, peers));
  return static_cast<int>(
      std::min(std::clamp(under_way / kBytesOfSocket, kFewSockets, kManySockets), most));
}

std::string NameOf(const PeerInfo& peer) {
  return fmt::format("{}@{}:{}", peer.rank, peer.host, peer.pid);
}

class TcpFactory final : public TransportFactory {
 public:
  TcpFactory(const TcpOptions& options, std::unique_ptr<TcpTransport> transport)
      : options_(options), transport_(std::move(transport)) {}

  Status Listen();
  std::vector<std::byte> payload() const override;
  Status Attach(Peer* peer, std::span<const std::byte> payload) override;
  Status Connect(const Mesh& mesh, const ConnectLimits& limits) override;
  std::unique_ptr<Transport> Take(bool /*alone*/) override { return std::move(transport_); }

 private:
  const TcpOptions options_;
  std::unique_ptr<TcpTransport> transport_;
  std::vector<UniqueIdAddress> addresses_;
  std::vector<Listener> listeners_;
  std::map<int, PeerConnector::PeerPlan> peers_;
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
  bootstrap::SetScopes(options_.interfaces, &theirs);
  peers_[peer->info.rank] = {.name = NameOf(peer->info), .addresses = std::move(theirs)};
  return Status::Ok();
}

Status TcpFactory::Connect(const Mesh& mesh, const ConnectLimits& limits) {
  if (options_.protection == tcp::Protection::kNone) {
    Log(LogLevel::kWarn, LogSubsystem::kTransport,
        "rank {}/{}: INCCL_NET_SECURITY=none: nothing protects the data on the network", mesh.rank,
        mesh.nranks);
  }
  const uint64_t machine = mesh.peers[static_cast<size_t>(mesh.rank)].info.machine_id;
  const std::vector<UniqueIdAddress> own = bootstrap::OwnAddresses();
  for (auto& [rank, plan] : peers_) {
    const Peer& peer = mesh.peers[static_cast<size_t>(rank)];
    if (peer.info.machine_id == machine || rank > mesh.rank) continue;  // the higher one connects
    const std::vector<UniqueIdAddress> all = plan.addresses;
    bootstrap::RemoveOwn(own, &plan.addresses);
    if (plan.addresses.empty()) {
      return InvalidUsage("tcp: " + bootstrap::IsAlsoHere(plan.name, all));
    }
    const auto reached = bootstrap::RemoteAddress(peer.control.get());
    if (reached) bootstrap::MoveToFront(*reached, &plan.addresses);
  }
  const int sockets = options_.sockets_per_peer > 0
                          ? options_.sockets_per_peer
                          : SocketsFor(limits.under_way, mesh.peers.size() - 1);
  // Twice, because connections of strangers wait for their authentication.
  const size_t connections = peers_.size() * static_cast<size_t>(sockets);
  Status room = bootstrap::EnsureDescriptors(2 * connections + kFewDescriptors);
  transport_->ShowIn(mesh.sockets);
  transport_->ConnectWhenNeeded(
      std::make_unique<PeerConnector>(PeerConnector::Options{.rank = mesh.rank,
                                                             .nranks = mesh.nranks,
                                                             .handshake = mesh.data_terms,
                                                             .sources = options_.listen.sources,
                                                             .sockets_per_peer = sockets,
                                                             .timeout_ms = limits.timeout_ms},
                                      std::move(listeners_), peers_, transport_->epoll()));
  // A large communicator does not use most pairs.
  if (mesh.graph.large()) return Status::Ok();
  if (!room.ok()) return room;
  return transport_->ConnectNow([&](const std::vector<int>& missing) {
    if (SystemClock().Now() >= limits.deadline) {
      return TimeoutError(fmt::format("no connection with {} within {} ms",
                                      bootstrap::ListRanks(missing), limits.timeout_ms));
    }
    return limits.check();
  });
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
