// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/bootstrap.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/escaped.h"
#include "base/log.h"
#include "bootstrap/crypto.h"
#include "bootstrap/handshake.h"
#include "bootstrap/host.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/join.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_root.h"
#include "bootstrap/socket.h"

namespace inccl {
namespace bootstrap {
namespace {

constexpr int kRendezvousNames = 8;
constexpr Time kBusyPause = 10 * kMillisecond;  // until a port may be free
constexpr Time kSilenceLimit = kSecond / 5;     // for a bound name whose holder cannot be seen

// Distinguishes a launcher's job, and the communicator within it, from others on this host.
std::string IdentityOf(const Launcher& launcher, int init_index) {
  return fmt::format("inccl launcher job\nuid={}\ninit={}\n{}", geteuid(), init_index,
                     launcher.job);
}

// Listens at the first name that no other user holds. If that fails, the result is not valid and
// *obstacle says why; the obstacle may be a rendezvous of this user.
UniqueFd ListenAtOneOf(const std::vector<SocketAddress>& names, bool pass_over_silent,
                       std::string* obstacle) {
  std::vector<std::string> foreign;
  for (const SocketAddress& name : names) {
    Result<UniqueFd> listener = Listen(name);
    if (listener.ok()) {
      for (const std::string& text : foreign) {
        Log(LogLevel::kWarn, LogSubsystem::kBootstrap, "{}", text);
      }
      return *std::move(listener);
    }
    *obstacle = listener.status().message();
    const Result<PeerCredentials> holder = WhoListens(name);
    if (!holder.ok() && pass_over_silent) continue;
    if (!holder.ok() || holder->uid == geteuid()) return {};
    foreign.push_back(
        fmt::format("the name of the rendezvous, {}, belongs to process {} of uid {}, not to uid "
                    "{}: another user has taken it",
                    name.ToString(), holder->pid, holder->uid, geteuid()));
  }
  return {};
}

// Rank 0 of a launcher's job calls this when no rendezvous of this user answers. Starts a
// rendezvous and returns "", or returns the current obstacle. If the obstacle is a rendezvous of
// this user, rank 0 connects to it like the other ranks: that one reports a second rank 0, or ends
// and frees the name.
Result<std::string> HostRendezvous(const std::vector<SocketAddress>& names, bool pass_over_silent,
                                   const HandshakeTerms& terms, const JoinOptions& options) {
  std::string obstacle;
  UniqueFd listener = ListenAtOneOf(names, pass_over_silent, &obstacle);
  if (!listener.valid()) return obstacle;
  RootOptions root;
  root.terms = terms;
  root.listeners.push_back(std::move(listener));
  root.same_uid_only = true;
  root.nranks = options.nranks;
  root.any_namespace = terms.secret_file;
  if (options.timeout_ms > 0) root.lifetime = 2 * options.timeout_ms * kMillisecond;
  if (Status status = StartRoot(std::move(root)); !status.ok()) return status;
  return std::string();
}

Status CheckRanks(const Launcher& launcher, const JoinOptions& options) {
  if (options.rank == launcher.rank && options.nranks == launcher.nranks) return Status::Ok();
  return InvalidArgument(fmt::format("rank {}/{}, but {} says {}/{}", options.rank, options.nranks,
                                     launcher.kind, launcher.rank, launcher.nranks));
}

// Rank 0 listens at INCCL_COMM_ID, where the rendezvous of its previous communicator may still be.
Status HostRendezvousAt(const UniqueIdAddress& address, const HandshakeTerms& terms,
                        const JoinOptions& options) {
  const SocketAddress where = SocketAddress::Tcp(address);
  bool in_use = false, warned = false;
  const Time start = SystemClock().Now();
  Result<UniqueFd> listener = Listen(where, &in_use);
  while (!listener.ok() && in_use && SystemClock().Now() < options.deadline &&
         (options.cancelled == nullptr || !options.cancelled->load())) {
    const Time now = SystemClock().Now();
    if (!warned && now - start >= options.patience) {
      warned = true;
      Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
          "rank {}/{}: init: INCCL_COMM_ID: still cannot listen, after {} ms: {}; another program "
          "has this port; the limit is {} ms",
          options.rank, options.nranks, options.patience / kMillisecond,
          listener.status().message(), options.timeout_ms);
    }
    SleepUntil(std::min(options.deadline, now + kBusyPause));
    listener = Listen(where, &in_use);
  }
  if (!listener.ok()) return listener.status();
  RootOptions root;
  root.terms = terms;
  root.listeners.push_back(*std::move(listener));
  root.sources = options.listen.sources;
  root.nranks = options.nranks;
  if (options.timeout_ms > 0) root.lifetime = 2 * options.timeout_ms * kMillisecond;
  return StartRoot(std::move(root));
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

Result<UniqueId> CreateUniqueId(const Environment& environment,
                                std::shared_ptr<const std::atomic<bool>> abandoned) {
  UniqueId id;
  Mac secret;
  if (Status status = FillRandom(id.nonce); !status.ok()) return status;
  if (Status status = FillRandom(secret); !status.ok()) return status;
  id.secret = Key(secret);
  Wipe(secret);
  id.needs_secret_file = !environment.secret_file.empty();
  RootOptions root;
  Result<Key> key = DeriveKey(id.secret.bytes(), environment.secret_file, id.nonce);
  if (!key.ok()) return key.status();
  root.terms = {.key = *key,
                .role = Role::kRendezvous,
                .communicator = id.nonce,
                .secret_file = id.needs_secret_file};
  root.lifetime = 2 * environment.init_timeout_ms * kMillisecond;
  root.abandoned = std::move(abandoned);
  Result<std::vector<UniqueIdAddress>> addresses = ChooseAddresses(environment.socket_ifname);
  if (!addresses.ok()) return addresses.status();
  Result<ListenRules> rules = ListenRules::Of(environment);
  if (!rules.ok()) return rules.status();
  Result<std::vector<UniqueFd>> listeners = ListenAtAll(&*addresses, rules->ports);
  if (!listeners.ok()) return listeners.status();
  root.sources = rules->sources;
  root.listeners = *std::move(listeners);
  id.addresses = *std::move(addresses);
  if (Status status = StartRoot(std::move(root)); !status.ok()) return status;
  Log(LogLevel::kInfo, LogSubsystem::kBootstrap, "{}: rendezvous at {}", id.ToString(),
      SocketAddress::Tcp(id.addresses.front()).ToString());
  return id;
}

Result<Mesh> JoinWithId(const UniqueId& id, const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (id.needs_secret_file && options.secret_file.empty()) {
    return OfRank(options,
                  InvalidUsage("the id was made with a secret file, which this rank lacks; "
                               "INCCL_SECRET_FILE must name it on every rank"));
  }
  if (!id.needs_secret_file && !options.secret_file.empty()) {
    return OfRank(options, InvalidUsage("INCCL_SECRET_FILE is set on this rank, but was not where "
                                        "the id was made; it must be set there and on every rank"));
  }
  Result<Key> key = DeriveKey(id.secret.bytes(), options.secret_file, id.nonce);
  if (!key.ok()) return OfRank(options, key.status());
  RootTarget target;
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
  return Join(target,
              {.key = *key,
               .role = Role::kRendezvous,
               .communicator = id.nonce,
               .secret_file = id.needs_secret_file},
              options);
}

Result<std::vector<std::string>> RendezvousNames(const Launcher& launcher, int init_index) {
  const Result<Mac> hash = Sha256(AsBytes(IdentityOf(launcher, init_index)));
  if (!hash.ok()) return hash.status();
  const std::string first = "inccl-job-" + Hex(Bytes(*hash).last(kNonceBytes));
  std::vector<std::string> names = {first};
  for (int i = 1; i < kRendezvousNames; ++i) names.push_back(fmt::format("{}-{}", first, i));
  return names;
}

Result<Mesh> JoinWithLauncher(const Launcher& launcher, int init_index,
                              const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckRanks(launcher, options); !status.ok()) return status;
  const std::string identity = IdentityOf(launcher, init_index);
  const Result<Mac> hash = Sha256(AsBytes(identity));
  if (!hash.ok()) return hash.status();
  HandshakeTerms terms;
  std::copy_n(hash->begin(), terms.communicator.size(), terms.communicator.begin());
  Secret secret;
  secret.Append(AsBytes(identity));
  secret.Append(AsBytes(launcher.secret));
  Result<Key> key = DeriveKey(secret.bytes(), options.secret_file, terms.communicator);
  if (!key.ok()) return OfRank(options, key.status());
  terms.key = *key;
  terms.secret_file = !options.secret_file.empty();
  Result<std::vector<std::string>> names = RendezvousNames(launcher, init_index);
  if (!names.ok()) return names.status();
  RootTarget target;
  for (const std::string& name : *names) target.addresses.push_back(SocketAddress::Unix(name));
  target.same_uid_only = true;
  target.any_namespace = terms.secret_file;
  target.may_come_later = true;
  if (options.rank == 0) {
    const Time silent_until = SystemClock().Now() + kSilenceLimit;
    target.make = [&target, &terms, &options, silent_until] {
      const bool pass_over_silent = SystemClock().Now() >= silent_until;
      return HostRendezvous(target.addresses, pass_over_silent, terms, options);
    };
  }
  return Join(target, terms, options);
}

Result<Mesh> JoinAtAddress(const std::string& address, const Launcher& launcher, int init_index,
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
    return JoinWithLauncher(here, init_index, options);
  }
  const std::string identity =
      fmt::format("inccl comm id\ninit={}\n{}\n{}", init_index, launcher.run, address);
  const Result<Mac> hash = Sha256(AsBytes(identity));
  if (!hash.ok()) return hash.status();
  HandshakeTerms terms;
  std::copy_n(hash->begin(), terms.communicator.size(), terms.communicator.begin());
  Result<Key> key = DeriveKey(AsBytes(identity), options.secret_file, terms.communicator);
  if (!key.ok()) return OfRank(options, key.status());
  terms.key = *key;
  terms.secret_file = true;
  RootTarget target;
  target.addresses.push_back(SocketAddress::Tcp(*where));
  target.may_come_later = true;
  if (options.rank == 0) {
    if (Status status = HostRendezvousAt(*where, terms, options); !status.ok()) {
      return OfRank(options, {status.code(), "INCCL_COMM_ID: " + status.message()});
    }
  }
  return Join(target, terms, options);
}

Result<Mesh> JoinByStore(LauncherStore* store, const Launcher& launcher, int init_index,
                         const Environment& environment, const JoinOptions& options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (Status status = CheckRanks(launcher, options); !status.ok()) return status;
  auto abandoned = std::make_shared<std::atomic<bool>>(false);
  Result<UniqueId> id = InternalError("not made");
  std::string value;
  if (options.rank == 0) {
    id = CreateUniqueId(environment, abandoned);
    value = ForStore(id);
  }
  const Result<std::string> shared = store->Share(value, {.rank = options.rank,
                                                          .index = init_index,
                                                          .deadline = options.deadline,
                                                          .cancelled = options.cancelled});
  if (!shared.ok()) {
    abandoned->store(true);
    return OfRank(options, shared.status());
  }
  if (options.rank != 0) id = FromStore(*shared, store->name());
  if (!id.ok()) return OfRank(options, id.status());
  Result<Mesh> mesh = JoinWithId(*id, options);
  if (!mesh.ok()) abandoned->store(true);
  return mesh;
}

}  // namespace inccl
