// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fault_point.h"
#include "bootstrap/connector.h"
#include "bootstrap/gathering.h"
#include "bootstrap/host.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/messages.h"
#include "bootstrap/socket.h"
#include "bootstrap/socket_list.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kOtherDescriptors = 8;
constexpr Time kNewsGrace = kSecond;  // for the rendezvous to report what it knows of a failure

// Listens at a random name that only the other ranks of this machine learn.
Result<UniqueFd> ListenOnMachine(std::string* name) {
  Nonce random;
  if (Status status = FillRandom(random); !status.ok()) return status;
  *name = "inccl-mesh-" + Hex(random);
  return Listen(SocketAddress::Unix(*name));
}

// Listens for ranks on other machines, unless this one has no address that they reach. Others may
// well reach the address from which this rank has reached the rendezvous.
Status ListenForMachines(const JoinOptions& options, const RendezvousClient& root,
                         std::vector<UniqueIdAddress>* addresses,
                         std::vector<Listener>* listeners) {
  Result<std::vector<UniqueIdAddress>> chosen = ChooseAddresses(options.socket_ifname);
  if (!chosen.ok()) return chosen.status();
  const std::optional<UniqueIdAddress> local = LocalAddress(root.fd());
  if (options.socket_ifname.empty() && local) PutFirst(*local, &*chosen);
  std::erase_if(*chosen, IsLoopback);
  if (chosen->empty()) return Status::Ok();
  const PortRange& ports = options.listen.ports;
  Result<std::vector<UniqueFd>> made = ListenAtAll(&*chosen, ports);
  if (!made.ok() && ports.first != 0) return made.status();
  if (!made.ok()) return Status::Ok();  // PlanMesh says so if a rank is on another machine
  for (UniqueFd& listener : *made) {
    listeners->push_back({.fd = std::move(listener), .is_unix = false});
  }
  *addresses = *std::move(chosen);
  return Status::Ok();
}

PeerInfo InfoOf(const RankRecord& record) {
  return {.rank = static_cast<int>(record.rank),
          .pid = static_cast<int>(record.pid),
          .uid = record.uid,
          .host = record.host,
          .host_id = record.host_id,
          .machine_id = record.machine_id,
          .blob = record.blob,
          .key = record.key,
          .round_trip_us = record.round_trip_us};
}

// For the descriptors of so many connections.
Status MakeRoom(const JoinOptions& options, size_t connections) {
  return EnsureDescriptors(connections * (1 + options.share_fds.size()) + kOtherDescriptors);
}

Status CheckKeys(const RankTable& table) {
  for (const RankRecord& record : table.ranks) {
    if (record.key) continue;
    return InternalError(fmt::format("rank {} sent no key for control messages", NameOf(record)));
  }
  return Status::Ok();
}

ControlGraph GraphOf(const JoinOptions& options, const RankTable& table) {
  std::vector<uint64_t> hosts;
  for (const RankRecord& record : table.ranks) hosts.push_back(record.host_id);
  return {HostMap(hosts), options.all_pairs};
}

// The connections of the mesh: within a machine over unix sockets, else over TCP.
Result<std::vector<LinkPlan>> PlanMesh(const JoinOptions& options, const RankTable& table,
                                       const ControlGraph& graph) {
  const RankRecord& self = table.ranks[static_cast<size_t>(options.rank)];
  const std::vector<UniqueIdAddress> own = OwnAddresses();
  std::vector<LinkPlan> plans;
  for (const RankRecord& record : table.ranks) {
    if (!graph.Linked(options.rank, static_cast<int>(record.rank))) continue;
    LinkPlan& plan = plans.emplace_back();
    plan.peer = static_cast<int>(record.rank);
    plan.peer_name = NameOf(record);
    if (record.machine_id == self.machine_id) {
      plan.addresses.push_back(SocketAddress::Unix(record.mesh_name));
      continue;
    }
    const RankRecord& server = record.rank < self.rank ? record : self;
    if (server.mesh_addresses.empty()) {
      return InvalidUsage(fmt::format(
          "ranks {} and {} are on different machines or in different network namespaces, and rank "
          "{} listens on this machine only; INCCL_SOCKET_IFNAME names an interface that the others "
          "reach",
          NameOf(self), NameOf(record), NameOf(server)));
    }
    std::vector<UniqueIdAddress> addresses = server.mesh_addresses;
    if (server.rank != self.rank) RemoveOwn(own, &addresses);
    if (addresses.empty()) {
      return InvalidUsage(IsAlsoHere(NameOf(server), server.mesh_addresses));
    }
    SetScopes(options.socket_ifname, &addresses);
    for (const UniqueIdAddress& address : addresses) {
      plan.addresses.push_back(SocketAddress::Tcp(address));
    }
  }
  return plans;
}

Status WireMesh(const JoinOptions& options, const Key& rendezvous, const RankTable& table,
                std::vector<Listener> listeners, RendezvousClient* root, Mesh* mesh,
                std::vector<UniqueFd>* open) {
  Secret secret;
  secret.Append(rendezvous.bytes());
  secret.Append(table.secret.bytes());
  Result<Key> key = Hkdf(secret.bytes(), table.session, "inccl mesh");
  if (!key.ok()) return key.status();
  const Result<Mac> hash = Sha256(table.session);
  if (!hash.ok()) return hash.status();
  ByteReader(*hash).U64(&mesh->nonce_hash);
  mesh->rank = options.rank;
  mesh->nranks = options.nranks;
  mesh->peers.resize(table.ranks.size());
  for (size_t i = 0; i < table.ranks.size(); ++i) mesh->peers[i].info = InfoOf(table.ranks[i]);
  mesh->graph = GraphOf(options, table);
  mesh->data_terms = {.key = *key, .role = Role::kData, .communicator = table.session};
  Result<std::vector<LinkPlan>> plans = PlanMesh(options, table, mesh->graph);
  if (!plans.ok()) return plans.status();
  if (!mesh->graph.complete()) {
    if (Status status = CheckKeys(table); !status.ok()) return status;
    if (Status room = MakeRoom(options, plans->size()); !room.ok()) return room;
  }
  ConnectTerms terms;
  terms.rank = options.rank;
  terms.nranks = options.nranks;
  terms.handshake = mesh->data_terms;
  terms.handshake.role = Role::kMesh;
  terms.share_fds = options.share_fds;
  terms.deadline = options.deadline;
  terms.timeout_ms = options.timeout_ms;
  terms.sources = options.listen.sources;
  terms.check = [root](const std::vector<int>&) { return root->Check(); };
  terms.check_fd = root->fd();
  std::vector<Link> links;
  Status status = ConnectPeers(std::move(terms), *plans, std::move(listeners), &links, open);
  if (!status.ok()) return status;
  for (size_t i = 0; i < links.size(); ++i) {
    const LinkPlan& plan = (*plans)[i];
    Peer& peer = mesh->peers[static_cast<size_t>(plan.peer)];
    peer.control = std::move(links[i].fd);
    peer.fds = std::move(links[i].fds);
    if (plan.addresses.front().is_unix()) continue;
    Result<StreamCipher> cipher = StreamCipher::Create(links[i].send_key, links[i].receive_key);
    if (!cipher.ok()) return cipher.status();
    peer.cipher = *std::move(cipher);
  }
  return Status::Ok();
}

// Reports a failure to the rendezvous, which reports the first failure it received to all ranks.
Status AgreeOnFailure(const Status& ours, const RankRecord& self, RendezvousClient* root) {
  if (root->verdict().ok()) {
    root->LimitTo(SystemClock().Now() + kNewsGrace);
    (void)root->Send(MessageKind::kFailed, EncodeError(ours));
    const Status news = root->Await(MessageKind::kGo).status();
    // The rendezvous has gone: it may have died first, and the missing peer may have left for that.
    const bool named = ours.message().find(root->name()) != std::string::npos;
    if (root->verdict().ok() && news.code() == Code::kRemoteError && !named) {
      return root->Named(Status(ours.code(), fmt::format("{}; and the rendezvous at {} is gone",
                                                         ours.message(), root->name())));
    }
  }
  const Status& verdict = root->verdict();
  const bool an_echo = verdict.message().find(NameOf(self) + " failed") != std::string::npos;
  // Others have come to the same result.
  std::string_view own = ours.message();
  const std::string name = fmt::format("{}: init: ", root->rank_name());
  if (own.starts_with(name)) own.remove_prefix(name.size());
  if (verdict.ok() || an_echo || verdict.message().ends_with(own)) return root->Named(ours);
  // `ours` may be the verdict with what this rank knows besides.
  return ours.message().starts_with(verdict.message()) ? ours : verdict;
}

}  // namespace

std::string Hex(Bytes bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<int>(b));
  return text;
}

Status CheckOptions(const JoinOptions& options) {
  if (options.nranks < 1 || options.nranks > kMaxRanks) {
    return InvalidArgument(fmt::format("nranks: {} is not in [1, {}]", options.nranks, kMaxRanks));
  }
  if (options.rank < 0 || options.rank >= options.nranks) {
    return InvalidArgument(fmt::format("rank: {} is not in [0, {})", options.rank, options.nranks));
  }
  if (options.share_fds.size() > kMaxSharedFds) {
    return InvalidArgument(fmt::format("{} descriptors to share, at most {}",
                                       options.share_fds.size(), kMaxSharedFds));
  }
  if (options.agreement.size() > kMaxAgreement) {
    return InvalidArgument(
        fmt::format("agreement of {} bytes, at most {}", options.agreement.size(), kMaxAgreement));
  }
  if (options.blob.size() > kMaxBlob) {
    return InvalidArgument(
        fmt::format("blob of {} bytes, at most {}", options.blob.size(), kMaxBlob));
  }
  return Status::Ok();
}

Result<Key> DeriveKey(Bytes secret, const std::string& secret_file, Bytes nonce) {
  if (secret_file.empty()) return Hkdf(secret, nonce, "inccl rendezvous");
  Result<Secret> content = ReadSecretFile(secret_file);
  if (!content.ok()) return content.status();
  Secret material;
  material.Append(secret);
  material.Append(content->bytes());
  return Hkdf(material.bytes(), nonce, "inccl rendezvous");
}

Status OfRank(const JoinOptions& options, const Status& status) {
  return {status.code(),
          fmt::format("rank {}/{}: init: {}", options.rank, options.nranks, status.message())};
}

Result<Mesh> Join(const RootTarget& target, const JoinOptions& options) {
  const auto named = [&](const Status& status) { return OfRank(options, status); };
  if (options.nranks <= options.all_pairs) {
    Status room = MakeRoom(options, static_cast<size_t>(options.nranks));
    if (!room.ok()) return named(room);
  }
  Registration registration;
  registration.record = {.rank = static_cast<uint32_t>(options.rank),
                         .pid = static_cast<uint32_t>(getpid()),
                         .uid = static_cast<uint32_t>(geteuid()),
                         .host_id = 0,
                         .machine_id = 0,
                         .host = HostName(),
                         .mesh_name = "",
                         .mesh_addresses = {},
                         .blob = options.blob,
                         .key = {}};
  std::shared_ptr<const KeyExchange> key;
  if (options.nranks > options.all_pairs) {
    Result<KeyExchange> made = KeyExchange::Create();
    if (!made.ok()) return named(made.status());
    registration.record.key = made->public_key();
    key = std::make_shared<const KeyExchange>(*std::move(made));
  }
  Result<uint64_t> host_id = HostId(options.host_id);
  if (!host_id.ok()) return named(host_id.status());
  registration.record.host_id = *host_id;
  Result<uint64_t> machine_id = HostId("");
  if (!machine_id.ok()) return named(machine_id.status());
  registration.record.machine_id = *machine_id;
  std::vector<Listener> listeners;
  Result<UniqueFd> on_machine = ListenOnMachine(&registration.record.mesh_name);
  if (!on_machine.ok()) return named(on_machine.status());
  listeners.push_back({.fd = *std::move(on_machine), .is_unix = true});
  registration.number = target.number;
  registration.nranks = static_cast<uint32_t>(options.nranks);
  registration.timeout_ms = static_cast<uint32_t>(std::max(0, options.timeout_ms));
  registration.agreement = options.agreement;

  FAULT_POINT("bootstrap.before_connect");
  Result<std::unique_ptr<RendezvousClient>> connected =
      RendezvousClient::Connect(target, {.rank = options.rank,
                                         .nranks = options.nranks,
                                         .deadline = options.deadline,
                                         .timeout_ms = options.timeout_ms,
                                         .patience = options.patience,
                                         .cancelled = options.cancelled});
  if (!connected.ok()) return connected.status();
  FAULT_POINT("bootstrap.after_authentication");
  RendezvousClient& root = **connected;
  Status status;
  if (!target.addresses.front().is_unix()) {
    status = ListenForMachines(options, root, &registration.record.mesh_addresses, &listeners);
    if (!status.ok()) return named(status);
  }
  registration.record.round_trip_us = RoundTripUs(root.fd());
  registration.remaining =
      options.deadline == kNever ? kNever : options.deadline - SystemClock().Now();
  status = root.Send(MessageKind::kRegister, registration.Encode());
  if (!status.ok()) return status;
  FAULT_POINT("bootstrap.after_register");
  Result<std::vector<std::byte>> body = root.Await(MessageKind::kTable);
  if (!body.ok()) return body.status();
  FAULT_POINT("bootstrap.after_table");
  Result<RankTable> table = RankTable::Decode(*body, registration.nranks);
  if (!table.ok()) return named(table.status());

  Mesh mesh;
  mesh.key = std::move(key);
  std::vector<UniqueFd> open;  // kept open until a failure has been reported
  status = WireMesh(options, target.terms.key, *table, std::move(listeners), &root, &mesh, &open);
  if (status.ok() && options.prepare) status = options.prepare(&mesh, &root);
  if (!status.ok()) return AgreeOnFailure(status, registration.record, &root);
  FAULT_POINT("bootstrap.before_done");
  if (status = root.Send(MessageKind::kDone, {}); !status.ok()) return status;
  FAULT_POINT("bootstrap.after_done");
  Result<std::vector<std::byte>> go = root.Await(MessageKind::kGo);
  if (!go.ok()) return go.status();
  FAULT_POINT("bootstrap.after_go");
  return mesh;
}

}  // namespace inccl::bootstrap
