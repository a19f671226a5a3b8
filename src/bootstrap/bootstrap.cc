// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/bootstrap.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "bootstrap/crypto.h"
#include "bootstrap/handshake.h"
#include "bootstrap/host.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/join.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/socket.h"

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
  if (opened) RendezvousServer::Get().Close(name);
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
  Result<Key> key = DeriveKey(id.secret.bytes(), options.secret_file, id.nonce);
  if (!key.ok()) return OfRank(options, key.status());
  RootTarget target;
  target.terms = {.key = *key, .role = Role::kRendezvous, .communicator = id.nonce};
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
  if (Status status = FillRandom(id.nonce); !status.ok()) return status;
  if (Status status = FillRandom(secret); !status.ok()) return status;
  id.secret = Key(secret);
  Wipe(secret);
  id.needs_secret_file = !environment.secret_file.empty();
  Result<Key> key = DeriveKey(id.secret.bytes(), environment.secret_file, id.nonce);
  if (!key.ok()) return key.status();
  Result<std::vector<UniqueIdAddress>> addresses = ChooseAddresses(environment.socket_ifname);
  if (!addresses.ok()) return addresses.status();
  Result<ListenRules> rules = ListenRules::Of(environment);
  if (!rules.ok()) return rules.status();
  const Status opened = RendezvousServer::Get().Open(
      {.terms = {.key = *key, .role = Role::kRendezvous, .communicator = id.nonce},
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

void WithdrawUniqueId(const UniqueId& id) { RendezvousServer::Get().Close(id.nonce); }

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
    static auto* const numbers = new Numbers;
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
