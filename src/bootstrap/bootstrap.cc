// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/bootstrap.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "bootstrap/connector.h"
#include "bootstrap/crypto.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/host.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/socket.h"
#include "bootstrap/socket_list.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kOtherDescriptors = 8;
constexpr Time kNewsGrace = kSecond;  // for the rendezvous to report what it knows of a failure
constexpr Time kVerdictGrace = 300 * kMillisecond;  // of a rank that leaves

// Listens at a random name that only the other ranks of this machine learn.
Result<UniqueFd> ListenOnMachine(std::string* name) {
  Nonce random;
  if (Status status = FillRandom(random); !status.ok()) return status;
  *name = "inccl-mesh-" + Hex(random);
  return Listen(SocketAddress::Unix(*name));
}

// Listens for ranks on other machines, unless this one has no address that they reach. Others may
// well reach the address from which this rank has reached the rendezvous.
Status ListenForMachines(const JoinOptions& options, int rendezvous,
                         std::vector<UniqueIdAddress>* addresses,
                         std::vector<Listener>* listeners) {
  Result<std::vector<UniqueIdAddress>> chosen = ChooseAddresses(options.socket_ifname);
  if (!chosen.ok()) return chosen.status();
  const std::optional<UniqueIdAddress> local = LocalAddress(rendezvous);
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

HostMap HostMapOf(const RankTable& table) {
  std::vector<uint64_t> hosts;
  for (const RankRecord& record : table.ranks) hosts.push_back(record.host_id);
  return HostMap(hosts);
}

// The round trips of this rank's connections so far.
std::vector<MeasuredLink> LinksOf(const Mesh& mesh) {
  std::vector<MeasuredLink> links;
  for (const Peer& peer : mesh.peers) {
    const uint32_t us = peer.control.valid() ? RoundTripUs(peer.control.get()) : 0;
    if (us > 0) links.push_back({mesh.rank, peer.info.rank, us});
  }
  return links;
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
    plan.peer_key = record.key;
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

// A descriptor that is readable when one of the two is; none if `second` is -1.
Result<UniqueFd> WatchBoth(int first, int second) {
  if (second < 0) return UniqueFd();
  UniqueFd both(epoll_create1(EPOLL_CLOEXEC));
  if (!both.valid()) return SystemErrorErrno("epoll_create1", errno);
  for (const int fd : {first, second}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(both.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return SystemErrorErrno("epoll_ctl", errno);
    }
  }
  return both;
}

Status WireMesh(const JoinOptions& options, const Key& rendezvous, const RankTable& table,
                std::shared_ptr<ServerKey> own, std::vector<Listener> listeners,
                RendezvousClient* root, Mesh* mesh, std::vector<UniqueFd>* open) {
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
  mesh->graph = {HostMapOf(table), options.all_pairs};
  mesh->data_terms = {
      .key = *key, .role = Role::kData, .communicator = table.session, .own = std::move(own)};
  Result<std::vector<LinkPlan>> plans = PlanMesh(options, table, mesh->graph);
  if (!plans.ok()) return plans.status();
  if (!mesh->graph.complete()) {
    if (Status room = MakeRoom(options, plans->size()); !room.ok()) return room;
  }
  JoinOptions::Alongside alongside;
  if (options.begin) {
    Result<JoinOptions::Alongside> begun = options.begin(*mesh);
    if (!begun.ok()) return begun.status();
    alongside = *std::move(begun);
  }
  Result<UniqueFd> both = WatchBoth(root->fd(), alongside.fd);
  if (!both.ok()) return both.status();
  ConnectTerms terms;
  terms.rank = options.rank;
  terms.nranks = options.nranks;
  terms.handshake = mesh->data_terms;
  terms.handshake.role = Role::kMesh;
  terms.share_fds = options.share_fds;
  terms.deadline = options.deadline;
  terms.timeout_ms = options.timeout_ms;
  terms.sources = options.listen.sources;
  terms.check = [root, &alongside](const std::vector<int>&) {
    if (alongside.fd >= 0) alongside.advance();
    return root->Check();
  };
  terms.check_fd = both->valid() ? both->get() : root->fd();
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
Status AgreeOnFailure(const Status& ours, const RankRecord& self, bool cancelled,
                      RendezvousClient* root) {
  if (root->verdict().ok()) {
    root->LimitTo(SystemClock().Now() + kNewsGrace);
    (void)root->Send(MessageKind::kFailed, EncodeError(ours));
    // Else peers would see this rank's connections close first, and take it for dead.
    if (cancelled) root->AwaitVerdict(SystemClock().Now() + kVerdictGrace);
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
  Result<std::shared_ptr<ServerKey>> own = ServerKey::Create();
  if (!own.ok()) return named(own.status());
  registration.record.key = (*own)->public_key();
  Result<uint64_t> host_id = HostId(options.host_id);
  if (!host_id.ok()) return named(host_id.status());
  registration.record.host_id = *host_id;
  Result<uint64_t> machine_id = MachineId(options.host_id);
  if (!machine_id.ok()) return named(machine_id.status());
  registration.record.machine_id = *machine_id;
  std::vector<Listener> listeners;
  Result<UniqueFd> on_machine = ListenOnMachine(&registration.record.mesh_name);
  if (!on_machine.ok()) return named(on_machine.status());
  listeners.push_back({.fd = *std::move(on_machine), .is_unix = true});
  registration.number = target.number;
  registration.nranks = static_cast<uint32_t>(options.nranks);
  registration.members = static_cast<uint32_t>(options.members);
  registration.timeout_ms = static_cast<uint32_t>(std::max(0, options.timeout_ms));
  registration.agreement = options.agreement;

  bool listens = target.addresses.empty() || target.addresses.front().is_unix();
  const auto register_on = [&](int fd) -> Result<std::vector<std::byte>> {
    if (!listens) {
      Status status =
          ListenForMachines(options, fd, &registration.record.mesh_addresses, &listeners);
      if (!status.ok()) return status;
      if (options.network_blob) registration.record.blob = options.network_blob();
      listens = true;
    }
    registration.record.round_trip_us = RoundTripUs(fd);
    ++registration.attempt;
    registration.remaining =
        options.deadline == kNever ? kNever : options.deadline - SystemClock().Now();
    return registration.Encode();
  };
  FAULT_POINT("bootstrap.before_connect");
  Result<std::unique_ptr<RendezvousClient>> connected =
      RendezvousClient::Connect(target, {.rank = options.rank,
                                         .nranks = options.nranks,
                                         .deadline = options.deadline,
                                         .timeout_ms = options.timeout_ms,
                                         .patience = options.patience,
                                         .cancelled = options.cancelled,
                                         .registration = register_on});
  if (!connected.ok()) return connected.status();
  RendezvousClient& root = **connected;
  FAULT_POINT("bootstrap.after_register");
  Result<std::vector<std::byte>> body = root.Await(MessageKind::kTable);
  if (!body.ok()) return body.status();
  FAULT_POINT("bootstrap.after_table");
  Result<RankTable> table = RankTable::Decode(*body, registration.nranks);
  if (!table.ok()) return named(table.status());

  Mesh mesh;
  std::vector<UniqueFd> open;  // kept open until a failure has been reported
  Status status = WireMesh(options, target.terms.key, *table, *std::move(own), std::move(listeners),
                           &root, &mesh, &open);
  if (status.ok() && options.prepare) status = options.prepare(&mesh, &root);
  if (!status.ok())
    return AgreeOnFailure(status, registration.record, options.cancelled.requested(), &root);
  FAULT_POINT("bootstrap.before_done");
  const std::vector<std::byte> links = EncodeLinks(LinksOf(mesh));
  if (status = root.Send(MessageKind::kDone, links); !status.ok()) return status;
  FAULT_POINT("bootstrap.after_done");
  Result<std::vector<std::byte>> go = root.Await(MessageKind::kGo);
  if (!go.ok()) return go.status();
  Result<Sites> sites = DecodeSites(*go, HostMapOf(*table).hosts());
  if (!sites.ok()) return named(sites.status());
  mesh.sites = *std::move(sites);
  FAULT_POINT("bootstrap.after_go");
  return mesh;
}

}  // namespace inccl::bootstrap

namespace inccl {

namespace bootstrap {
namespace {

// Distinguishes a launcher's job from others on this host.
std::string IdentityOf(const Launcher& launcher) {
  return fmt::format("inccl launcher job\nuid={}\n{}", geteuid(), launcher.job);
}

Status CheckRanks(const Launcher& launcher, const JoinOptions& options) {
  if (options.rank == launcher.rank && options.nranks == launcher.nranks) return Status::Ok();
  return InvalidArgument(fmt::format("rank {}/{}, but {} says {}/{}", options.rank, options.nranks,
                                     launcher.kind, launcher.rank, launcher.nranks));
}

// Where ranks of a job meet: they name it by `identity` and know `secret`, besides the secret file.
struct Place {
  SocketAddress address;
  std::string identity;
  Secret secret = {};
  std::string variable = "";  // begins errors of rank 0 about the address
};

Time LifetimeFor(int timeout_ms) {
  return timeout_ms > 0 ? 2 * timeout_ms * kMillisecond : RootOptions().lifetime;
}

// Rank 0 opens the job's rendezvous, if this process has not done so for another communicator.
Result<Mesh> JoinJob(const Place& place, uint32_t number, const JoinOptions& options) {
  RootTarget target;
  target.addresses.push_back(place.address);
  target.number = number;
  target.may_come_later = true;
  target.secret_file = !options.secret_file.empty();
  target.same_container = place.address.is_unix() && !target.secret_file;
  const Result<Mac> hash = Sha256(AsBytes(place.identity));
  if (!hash.ok()) return hash.status();
  Nonce& name = target.terms.communicator;
  std::copy_n(hash->begin(), name.size(), name.begin());
  Secret secret;
  secret.Append(AsBytes(place.identity));
  secret.Append(place.secret.bytes());
  Result<Key> key = DeriveKey(secret.bytes(), options.secret_file, name);
  if (!key.ok()) return OfRank(options, key.status());
  target.terms.key = *key;
  if (options.rank != 0) return Join(target, options);
  const MeetingOptions meeting = {
      .terms = target.terms,
      .of_job = true,
      .root = {.lifetime = LifetimeFor(options.timeout_ms), .nranks = options.nranks}};
  bool opened = false;
  target.open = [&]() -> Result<std::string> {
    bool in_use = false;
    const Status status = RendezvousServer::Get().OpenAt(
        meeting, place.address, options.listen.sources,
        target.same_container ? Admission::kSameUserAndContainer : Admission::kSameUser, &in_use);
    opened = status.ok();
    if (opened) return std::string();
    if (in_use) return place.variable + status.message();
    return Status(status.code(), place.variable + status.message());
  };
  Result<Mesh> mesh = Join(target, options);
  if (opened) RendezvousServer::Get().Close(name, Status::Ok());
  return mesh;
}

// Joins by an id that serves one communicator, or those of a job.
Result<Mesh> JoinById(const UniqueId& id, uint32_t number, const JoinOptions& options) {
  if (id.needs_secret_file && options.secret_file.empty()) {
    return OfRank(options,
                  InvalidUsage("the id was made with a secret file, which this rank lacks; "
                               "INCCL_SECRET_FILE must name it on every rank"));
  }
  if (!id.needs_secret_file && !options.secret_file.empty()) {
    return OfRank(options, InvalidUsage("INCCL_SECRET_FILE is set on this rank, but was not where "
                                        "the id was made; it must be set there and on every rank"));
  }
  Result<Key> key = DeriveKey(id.secret.bytes(), options.secret_file, id.name());
  if (!key.ok()) return OfRank(options, key.status());
  RootTarget target;
  target.terms = {.key = *key, .role = Role::kRendezvous, .communicator = id.name()};
  target.server_key = id.server_key;
  target.number = number;
  target.secret_file = id.needs_secret_file;
  std::vector<UniqueIdAddress> addresses = id.addresses;
  SetScopes(options.socket_ifname, &addresses);
  for (const UniqueIdAddress& address : addresses) {
    target.addresses.push_back(SocketAddress::Tcp(address));
  }
  std::erase_if(addresses, IsLoopback);
  const bool others = !addresses.empty();
  RemoveOwn(OwnAddresses(), &addresses);
  if (others && addresses.empty()) {
    target.advice =
        "; this machine has the address itself: if the id was made on another one, set "
        "INCCL_SOCKET_IFNAME there to an interface that this one reaches";
  }
  return Join(target, options);
}

Result<UniqueId> CreateId(const Environment& environment, bool at_once, bool of_job) {
  UniqueId id;
  Mac secret;
  Result<std::shared_ptr<ServerKey>> own = ServerKey::Create();
  if (!own.ok()) return own.status();
  id.server_key = (*own)->public_key();
  if (Status status = FillRandom(secret); !status.ok()) return status;
  id.secret = Key(secret);
  Wipe(secret);
  id.needs_secret_file = !environment.secret_file.empty();
  Result<Key> key = DeriveKey(id.secret.bytes(), environment.secret_file, id.name());
  if (!key.ok()) return key.status();
  Result<std::vector<UniqueIdAddress>> addresses = ChooseAddresses(environment.socket_ifname);
  if (!addresses.ok()) return addresses.status();
  Result<ListenRules> rules = ListenRules::Of(environment);
  if (!rules.ok()) return rules.status();
  const Status opened = RendezvousServer::Get().Open(
      {.terms = {.key = *key,
                 .role = Role::kRendezvous,
                 .communicator = id.name(),
                 .own = *std::move(own)},
       .of_job = of_job,
       .root = {.lifetime = LifetimeFor(environment.init_timeout_ms), .at_once = at_once}},
      *rules, &*addresses);
  if (!opened.ok()) return opened;
  id.addresses = *std::move(addresses);
  Log(LogLevel::kInfo, LogSubsystem::kBootstrap, "{}: rendezvous at {}", id.ToString(),
      SocketAddress::Tcp(id.addresses.front()).ToString());
  return id;
}

// What rank 0 puts into the launcher's store, in hexadecimal digits: 'i' and the id, or 'e' and why
// there is none.
std::string ForStore(const Result<UniqueId>& id) {
  if (!id.ok()) return Hex(AsBytes("e" + id.status().message()));
  std::string bytes(1 + kUniqueIdBytes, 'i');
  id->Encode(reinterpret_cast<std::byte*>(bytes.data() + 1));
  return Hex(AsBytes(bytes));
}

Result<UniqueId> FromStore(const std::string& hex, const char* store) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    int byte = 0;
    if (std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16).ptr != hex.data() + i + 2) {
      break;
    }
    bytes += static_cast<char>(byte);
  }
  if (bytes.starts_with('e')) {
    return RemoteError(fmt::format("peer 0 reports: {}", Escaped(bytes.substr(1))));
  }
  if (bytes.size() != 1 + kUniqueIdBytes || !bytes.starts_with('i')) {
    return RemoteError(fmt::format("{}: what the launcher's store has is no unique id", store));
  }
  return UniqueId::Decode(reinterpret_cast<const std::byte*>(bytes.data() + 1));
}

}  // namespace
}  // namespace bootstrap

using namespace bootstrap;  // NOLINT(google-build-using-namespace): the definitions below

Result<UniqueId> CreateUniqueId(const Environment& environment, bool at_once) {
  return CreateId(environment, at_once, /*of_job=*/false);
}

void WithdrawUniqueId(const UniqueId& id, const Status& why) {
  RendezvousServer::Get().Close(id.name(), why);
}

Result<Mesh> JoinWithId(const UniqueId& id, const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  return JoinById(id, 0, options);
}

Result<std::string> RendezvousName(const Launcher& launcher) {
  const Result<Mac> hash = Sha256(AsBytes(IdentityOf(launcher)));
  if (!hash.ok()) return hash.status();
  return "inccl-job-" + Hex(Bytes(*hash).last(kNonceBytes));
}

Result<Mesh> JoinWithLauncher(const Launcher& launcher, uint32_t number,
                              const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckRanks(launcher, options); !status.ok()) return status;
  const Result<std::string> name = RendezvousName(launcher);
  if (!name.ok()) return name.status();
  Place place = {.address = SocketAddress::Unix(*name), .identity = IdentityOf(launcher)};
  place.secret.Append(AsBytes(launcher.secret));
  return JoinJob(place, number, options);
}

Result<Mesh> JoinAtAddress(const std::string& address, const Launcher& launcher, uint32_t number,
                           const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckRanks(launcher, options); !status.ok()) return status;
  Result<UniqueIdAddress> where =
      ResolveAddress(address, {.deadline = options.deadline, .cancelled = options.cancelled});
  if (!where.ok()) return OfRank(options, where.status());
  if (options.secret_file.empty() && !IsLoopback(*where)) {
    return OfRank(
        options, InvalidUsage(fmt::format("INCCL_COMM_ID={} needs INCCL_SECRET_FILE on all ranks: "
                                          "without it any process that reaches the port could join",
                                          address)));
  }
  if (Status status = CheckReach(address, *where, launcher); !status.ok()) {
    return OfRank(options, status);
  }
  if (options.secret_file.empty()) {  // the kernel says who a peer is
    Launcher here = launcher;
    here.job = fmt::format("INCCL_COMM_ID={}\n{}", address, launcher.run);
    return JoinWithLauncher(here, number, options);
  }
  return JoinJob({.address = SocketAddress::Tcp(*where),
                  .identity = fmt::format("inccl comm id\n{}\n{}", launcher.run, address),
                  .variable = "INCCL_COMM_ID: "},
                 number, options);
}

Result<Mesh> JoinByStore(LauncherStore* store, const Launcher& launcher, uint32_t number,
                         const Environment& environment, const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckRanks(launcher, options); !status.ok()) return status;
  const Result<std::string> shared = store->Share(
      [&environment] { return ForStore(CreateId(environment, false, /*of_job=*/true)); },
      {.rank = options.rank, .deadline = options.deadline, .cancelled = options.cancelled});
  if (!shared.ok()) return OfRank(options, shared.status());
  const Result<UniqueId> id = FromStore(*shared, store->name());
  if (!id.ok()) return OfRank(options, id.status());
  return JoinById(*id, number, options);
}

namespace {

class Numbers {
 public:
  // Never destroyed: threads may still make communicators while the process exits.
  static Numbers& Get() {
    static NoDestructor<Numbers> numbers;
    return *numbers;
  }

  uint32_t Take(const std::string& job) {
    const MutexLock lock(&mutex_);
    OfJob& numbers = jobs_[job];
    uint32_t number = numbers.next;
    if (!numbers.under_way.empty()) number = std::max(number, *numbers.under_way.rbegin() + 1);
    numbers.under_way.insert(number);
    return number;
  }
  void Keep(const std::string& job, uint32_t number) {
    const MutexLock lock(&mutex_);
    jobs_[job].next = std::max(jobs_[job].next, number + 1);
  }
  void GiveBack(const std::string& job, uint32_t number) {
    const MutexLock lock(&mutex_);
    jobs_[job].under_way.erase(number);
  }

 private:
  struct OfJob {
    uint32_t next = 0;             // above those of communicators that exist
    std::set<uint32_t> under_way;  // of creations
  };
  Mutex mutex_;
  std::map<std::string, OfJob> jobs_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace

CreationNumber::CreationNumber(const std::string& job)
    : job_(job), value_(Numbers::Get().Take(job)) {}
CreationNumber::~CreationNumber() { Numbers::Get().GiveBack(job_, value_); }
void CreationNumber::Settle(const Status& joined) {
  // An earlier attempt of this rank's ended at the moment when all had joined.
  const bool before = joined.message().ends_with(TooLate().message());
  if (joined.ok() || before) Numbers::Get().Keep(job_, value_);
}

}  // namespace inccl
