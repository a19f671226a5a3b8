// SPDX-License-Identifier: Apache-2.0
#include "init/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"
#include "control/loop.h"
#include "device/runtime.h"
#include "init/slot_memory.h"
#include "init/thread_transports.h"
#include "init/transport_selection.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

std::string PeerName(const std::string& host, int pid) { return fmt::format("{}:{}", host, pid); }

// A network that is cut for less than dead_after is no failure. TCP sends again when it has been
// cut for up to twice as long as it was.
Time CircleStallOverNetworks(Time dead_after) {
  return std::max(kSecond, 2 * (dead_after == kNever ? ControlOptions().dead_after : dead_after));
}

void Publish(Communicator* communicator, const InitOptions& options) {
  if (options.status_directory.empty()) return;
  const Status status = communicator->Publish(options.status_directory);
  if (status.ok()) return;
  Log(LogLevel::kInfo, LogSubsystem::kInit, "{}: inccl-status does not see this rank: {}",
      communicator->rank_name(), status.message());
}

// The longest of the round trips to the process where the ranks met. It is no less than half of the
// longest between two ranks, which are known when all have joined.
uint32_t LongestRoundTripUs(const Mesh& mesh) {
  uint32_t longest = 0;
  for (const Peer& peer : mesh.peers) longest = std::max(longest, peer.info.round_trip_us);
  return longest;
}

// What the log says of a rank that has joined.
struct Joined {
  std::string transport;
  Time began = 0, met = 0;  // when it began to join, and when it knew the others
  uint64_t under_way = 0;   // UnderWay
  int sites = 1;
};

void LogJoined(const Communicator& communicator, const std::string& agreement, const Joined& how) {
  constexpr auto kMs = static_cast<double>(kMillisecond);
  constexpr double kNsPerMs = 1e6;
  const auto after = [&how](Time when) { return static_cast<double>(when - how.began) / kMs; };
  const std::string rank = communicator.rank_name();
  Log(LogLevel::kInfo, LogSubsystem::kInit, "{} joined over {}: {}", rank, how.transport,
      agreement);
  Log(LogLevel::kInfo, LogSubsystem::kInit,
      "{}: all ranks met after {:.1f} ms, joined after {:.1f}", rank, after(how.met),
      after(SystemClock().Now()));
  if (how.under_way == 0) return;
  const CostConstants& costs = communicator.options().tuner_table.costs();
  Log(LogLevel::kInfo, LogSubsystem::kInit,
      "{}: long links between hosts: a round trip of {:.1f} ms, {} bytes under way, {} sites", rank,
      2 * static_cast<double>(costs.network_latency_ns) / kNsPerMs, how.under_way, how.sites);
}

Result<std::shared_ptr<Communicator>> Join(int nranks, int rank, const InitOptions& options,
                                           const JoinFunction& join, const Cancel& cancelled) {
  FAULT_RANK(rank);
  FAULT_POINT("init.begin");
  if (Status status = control::Loop::Get().CheckProcess(); !status.ok()) return status;
  const Time began = SystemClock().Now();
  Time met = began;
  JoinOptions join_options;
  join_options.rank = rank;
  join_options.nranks = nranks;
  join_options.timeout_ms = options.init_timeout_ms;
  join_options.deadline = began + options.init_timeout_ms * kMillisecond;
  join_options.agreement = options.agreement;
  join_options.secret_file = options.environment.secret_file;
  join_options.host_id = options.environment.hostid;
  join_options.socket_ifname = options.environment.socket_ifname;
  join_options.listen = options.listen;
  join_options.all_pairs = options.environment.control_all_pairs;
  join_options.cancelled = cancelled;
  TransportSelection transport(rank, nranks, options.environment, TakesDeviceSlices(options));
  transport.Advertise(&join_options);
  FAULT_POINT("shm.after_create");
  HostMap hosts;
  CommOptions comm = options.comm;
  Result<std::unique_ptr<Transport>> end = InternalError("no transport");
  ConnectLimits limits = {.deadline = join_options.deadline, .timeout_ms = options.init_timeout_ms};
  join_options.begin = [&](const Mesh& mesh) -> Result<JoinOptions::Alongside> {
    met = SystemClock().Now();
    std::vector<uint64_t> identities;
    for (const Peer& peer : mesh.peers) identities.push_back(peer.info.host_id);
    hosts = HostMap(identities);
    if (Status offers = transport.TakeOffers(mesh); !offers.ok()) return offers;
    TunerTable table = comm.tuner_table;
    table.SetLink(transport.slowest_link_mbps(), LongestRoundTripUs(mesh));
    limits.under_way = UnderWay(table.costs(), &hosts);
    return transport.Begin(mesh, hosts, limits);
  };
  join_options.prepare = [&](Mesh* mesh, bootstrap::RendezvousClient* rendezvous) {
    limits.check = [rendezvous] { return rendezvous->Check(); };
    end = transport.Choose({.mesh = mesh, .rendezvous = rendezvous, .limits = limits}, hosts);
    return end.status();
  };
  Result<Mesh> mesh = join(join_options);
  if (!mesh.ok()) {
    if (end.ok()) (*end)->Quiesce(SystemClock().Now());  // nobody waits for what it has sent
    return mesh.status();
  }
  const std::string name = (*end)->caps().name;
  hosts.SetSites(mesh->sites.of_host);
  comm.tuner_table.SetLink(transport.slowest_link_mbps(), mesh->sites.LongestUs());
  if (!options.environment.slot_bytes_given) {
    comm.slot_bytes_max = DefaultSlotBytes(UnderWay(comm.tuner_table.costs(), &hosts));
  }

  CommEnds ends;
  ends.rank = rank;
  ends.nranks = nranks;
  for (const Peer& peer : mesh->peers) {
    ends.peer_names.push_back(PeerName(peer.info.host, peer.info.pid));
    if (peer.info.machine_id == mesh->peers[static_cast<size_t>(rank)].info.machine_id) {
      ends.pids.push_back(peer.info.pid);
    }
  }
  ends.hosts = hosts;
  ends.sites = mesh->sites;
  ends.id = fmt::format("{:016x}", mesh->nonce_hash);
  ends.sockets = mesh->sockets;
  FAULT_POINT("init.after_attach");
  ends.transport = WithLink(*std::move(end), options.link);
  if (transport.all_device_slices()) comm.slice_bytes = kDeviceSliceBytes;
  if (hosts.hosts() > 1) comm.circle_stall = CircleStallOverNetworks(options.control.dead_after);
  // All ranks have agreed on the arguments of this check, so it fails on all of them or on none.
  if (Status fits = CheckSlotMemory(comm, ends.hosts, ends.transport->caps()); !fits.ok()) {
    return Status(fits.code(), fmt::format("rank {}/{}: init: {}", rank, nranks, fits.message()));
  }
  auto communicator = std::make_shared<Communicator>(std::move(ends), comm);
  FAULT_POINT("control.before_start");
  Result<std::unique_ptr<ControlPlane>> control =
      StartControl(*std::move(mesh), communicator->liveness(), options.control);
  if (!control.ok()) return control.status();
  communicator->AttachControl(*std::move(control));
  Publish(communicator.get(), options);
  if (Device* const device = CurrentDevice(); device != nullptr && device->InUse()) {
    communicator->PrepareOn(device->Current());
  }
  if (Status status = communicator->WarmUp(join_options.deadline, cancelled); !status.ok()) {
    return status;
  }
  LogJoined(*communicator, options.agreement,
            {.transport = name,
             .began = began,
             .met = met,
             .under_way = UnderWay(comm.tuner_table.costs(), &hosts),
             .sites = hosts.sites()});
  FAULT_POINT("init.before_return");
  communicator->Begin();
  return communicator;
}

}  // namespace

Result<std::shared_ptr<Communicator>> JoinProcesses(int nranks, int rank,
                                                    const InitOptions& options,
                                                    const JoinFunction& join,
                                                    const Cancel& cancelled) {
  Result<std::shared_ptr<Communicator>> made = Join(nranks, rank, options, join, cancelled);
  if (made.ok()) return made;
  return WithCommName(made.status(), rank, nranks, options.comm.name);
}

Result<std::vector<std::shared_ptr<Communicator>>> MakeThreads(int nranks,
                                                               const InitOptions& options) {
  if (Status status = control::Loop::Get().CheckProcess(); !status.ok()) return status;
  Result<std::vector<std::unique_ptr<Transport>>> transports =
      MakeThreadTransports(nranks, options.environment, TakesDeviceSlices(options));
  if (!transports.ok()) return transports.status();
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  CommOptions comm = options.comm;
  if (TakesDeviceSlices(options)) comm.slice_bytes = kDeviceSliceBytes;
  static std::atomic<uint32_t> made_before{0};
  const std::string id = fmt::format("{:08x}{:08x}", getpid(), made_before.fetch_add(1));
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<ControlHandler*> handlers;
  for (int rank = 0; rank < nranks; ++rank) {
    CommEnds ends;
    ends.rank = rank;
    ends.nranks = nranks;
    ends.hosts = HostMap::OneHost(nranks);
    ends.id = id;
    ends.pids.assign(static_cast<size_t>(nranks), getpid());
    ends.peer_names.assign(static_cast<size_t>(nranks), PeerName(host, getpid()));
    ends.transport = WithLink(std::move((*transports)[static_cast<size_t>(rank)]), options.link);
    if (Status fits = CheckSlotMemory(comm, ends.hosts, ends.transport->caps()); !fits.ok()) {
      return fits;
    }
    communicators.push_back(std::make_shared<Communicator>(std::move(ends), comm));
    handlers.push_back(communicators.back()->liveness());
  }
  Result<std::vector<std::unique_ptr<ControlPlane>>> planes = MakeLocalControl(handlers);
  if (!planes.ok()) return planes.status();
  for (size_t i = 0; i < communicators.size(); ++i) {
    communicators[i]->AttachControl(std::move((*planes)[i]));
    Publish(communicators[i].get(), options);
  }
  for (const std::shared_ptr<Communicator>& communicator : communicators) communicator->Begin();
  return communicators;
}

namespace {

// What every rank sends to the others about the part that it wants to join.
struct Wish {
  int32_t color = 0, key = 0;
};

// What every rank sends next: why it cannot join its part, if it cannot. The first member of a part
// has made the unique id, which the others get over the control connections.
struct Readiness {
  int32_t code = 0;
  std::array<char, 252> why{};  // cut if it is longer; ends with a 0

  static Readiness Of(const Status& status) {
    Readiness readiness;
    readiness.code = static_cast<int32_t>(status.code());
    status.message().copy(readiness.why.data(), readiness.why.size() - 1);
    return readiness;
  }
  std::string_view Why() const { return {why.data(), strnlen(why.data(), why.size())}; }
};

// What every member sends to the others about a growth.
struct Growth {
  int32_t nranks = 0, rank = 0;  // of the new communicator
  uint8_t has_id = 0;
  bootstrap::Nonce id_name{};
  Readiness ready;
};

template <typename T>
Result<std::vector<T>> Exchange(Communicator* parent, Purpose purpose, const T& mine) {
  std::vector<T> all;
  const Status status = CatchOutOfMemory([&] {
    all.resize(static_cast<size_t>(parent->nranks()));
    Call call;
    call.collective = Collective::kAllGather;
    call.type = DataType::kUint8;
    call.nranks = parent->nranks();
    call.rank = parent->rank();
    call.count = sizeof(T);
    call.send = &mine;
    call.recv = all.data();
    call.purpose = purpose;
    return parent->Run(call);
  });
  // Fails the parent, so that the other ranks do not wait for this one.
  if (!status.ok()) return parent->MakeSticky(status);
  return all;
}

// An id that this rank has made, for ranks that come at once. On destruction it serves no longer,
// which has no effect if all ranks have joined.
class OwnId {
 public:
  OwnId() = default;
  OwnId(const OwnId&) = delete;
  OwnId& operator=(const OwnId&) = delete;
  ~OwnId() { Withdraw(); }

  Result<UniqueId> Create(const Environment& environment) {
    Withdraw();
    Result<UniqueId> id = CreateUniqueId(environment, /*at_once=*/true);
    if (id.ok()) id_ = *id;
    return id;
  }
  void Withdraw() {
    if (id_) {
      WithdrawUniqueId(*id_, RemoteError("the rank that made the id does not want the "
                                         "communicator any more"));
    }
    id_.reset();
  }

 private:
  std::optional<UniqueId> id_;
};

// Ranks of one process can use other transports only if they are made together.
InitOptions ForJoining(InitOptions options) {
  std::string& transport = options.environment.transport;
  if (transport == "loopback") transport.clear();
  return options;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Split(Communicator* parent, int color, int key,
                                            const InitOptions& options) {
  const int rank = parent->rank();
  const uint64_t split = parent->NextSplit();
  Result<std::vector<Wish>> wishes = Exchange(parent, Purpose::kSplit, Wish{color, key});
  if (!wishes.ok()) return wishes.status();
  std::vector<int> members;
  const bool takes_part = color >= 0;
  UniqueId own;
  Status failure;
  OwnId id_of_this_rank;
  const Status prepared = CatchOutOfMemory([&] {
    for (int r = 0; r < parent->nranks(); ++r) {
      if ((*wishes)[static_cast<size_t>(r)].color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return (*wishes)[static_cast<size_t>(a)].key < (*wishes)[static_cast<size_t>(b)].key;
    });
    if (!takes_part) return Status::Ok();
    failure = bootstrap::EnsureDescriptors(members.size());
    if (!failure.ok() || members.front() != rank) return Status::Ok();
    Result<UniqueId> id = id_of_this_rank.Create(options.environment);
    failure = id.status();
    if (!id.ok()) return Status::Ok();
    own = *std::move(id);
    for (const int member : members) {
      if (member != rank) parent->invitations()->Send(member, split, own);
    }
    return Status::Ok();
  });
  if (!prepared.ok()) return parent->MakeSticky(prepared);
  // Every rank takes part, even after an error, because the others wait for it.
  Result<std::vector<Readiness>> all = Exchange(parent, Purpose::kSplit, Readiness::Of(failure));
  if (!failure.ok()) return failure;
  if (!all.ok()) return all.status();
  if (!takes_part) return std::shared_ptr<Communicator>();
  for (const int member : members) {
    const Readiness& theirs = (*all)[static_cast<size_t>(member)];
    if (theirs.code == 0) continue;
    return RemoteError(fmt::format("{}: split: rank {} cannot join: {}", parent->rank_name(),
                                   member, Escaped(theirs.Why())));
  }
  const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  Result<UniqueId> id =
      members.front() == rank
          ? Result<UniqueId>(own)
          : parent->invitations()->Await(members.front(), split, deadline, parent->failed_flag());
  if (!id.ok()) {
    return parent->CauseOf(
        Status(id.status().code(),
               fmt::format("{}: split: {}", parent->rank_name(), id.status().message())));
  }
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  // The join ends when the parent fails, like any other call on the parent. Otherwise it would wait
  // for a member that has died before it joined, or, after an abort, for all members.
  Result<std::shared_ptr<Communicator>> joined = JoinProcesses(
      static_cast<int>(members.size()), static_cast<int>(place), ForJoining(options),
      [&](const JoinOptions& join) { return JoinWithId(*id, join); }, parent->failed_flag());
  if (!joined.ok()) return parent->CauseOf(joined.status());
  (*joined)->SetLineage({parent->lineage(), {}});
  return joined;
}

Result<std::shared_ptr<Communicator>> Shrink(Communicator* parent, const RankSet& excluded,
                                             const InitOptions& options) {
  const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  const uint64_t completed = parent->completed();
  std::shared_ptr<Communicator> shrunk;
  ShrinkAgreement::Steps steps;
  OwnId id_of_this_round;
  steps.create_id = [&] { return id_of_this_round.Create(options.environment); };
  steps.join = [&](const UniqueId& id, const ShrinkAgreement::Outcome& outcome,
                   const std::atomic<bool>* cancelled) -> Status {
    const auto place =
        std::lower_bound(outcome.members.begin(), outcome.members.end(), parent->rank()) -
        outcome.members.begin();
    InitOptions joining = ForJoining(options);
    const Time left = std::max<Time>(deadline - SystemClock().Now(), kMillisecond);
    joining.init_timeout_ms = static_cast<int>((left + kMillisecond - 1) / kMillisecond);
    Result<std::shared_ptr<Communicator>> joined = JoinProcesses(
        static_cast<int>(outcome.members.size()), static_cast<int>(place), joining,
        [&](const JoinOptions& join) { return JoinWithId(id, join); }, cancelled);
    if (!joined.ok()) {
      id_of_this_round.Withdraw();
      return joined.status();
    }
    shrunk = *std::move(joined);
    return Status::Ok();
  };
  Result<ShrinkAgreement::Outcome> outcome =
      parent->shrink_agreement()->Agree(excluded, completed, deadline, steps);
  if (!outcome.ok()) {
    return WithCommName(outcome.status(), parent->rank(), parent->nranks(), parent->options().name);
  }
  const Lineage::Completed calls = {.on_all = outcome->last_completed, .here = completed};
  shrunk->SetLineage({parent->lineage(), calls});
  return shrunk;
}

namespace {

// Why what the members want does not fit together; every member finds the same.
Status CheckGrowth(const std::vector<Growth>& members, int* holder) {
  *holder = -1;
  const int nranks = members[0].nranks;
  for (size_t i = 0; i < members.size(); ++i) {
    const Growth& member = members[i];
    if (member.ready.code != 0) {
      return RemoteError(fmt::format("rank {} cannot join: {}", i, Escaped(member.ready.Why())));
    }
    if (member.nranks != nranks) {
      return InvalidUsage(
          fmt::format("nranks differ: {} on rank 0, {} on rank {}", nranks, member.nranks, i));
    }
    if (member.rank < 0 || member.rank >= nranks) {
      return InternalError(fmt::format("rank {} sent rank {} of {}", i, member.rank, nranks));
    }
  }
  std::vector<int> taken_by(static_cast<size_t>(nranks), -1);
  for (int r = 0; r < static_cast<int>(members.size()); ++r) {
    const Growth& member = members[static_cast<size_t>(r)];
    int& owner = taken_by[static_cast<size_t>(member.rank)];
    if (owner >= 0) {
      return InvalidUsage(fmt::format("ranks {} and {} both take rank {} of the new communicator",
                                      owner, r, member.rank));
    }
    owner = r;
    if (member.has_id == 0) continue;
    if (*holder >= 0 && members[static_cast<size_t>(*holder)].id_name != member.id_name) {
      return InvalidUsage(fmt::format("the ids of ranks {} and {} differ", *holder, r));
    }
    if (*holder < 0) *holder = r;
  }
  if (*holder < 0) return InvalidUsage("no member passes an id");
  return Status::Ok();
}

// *meeting: the id once this rank knows it. *agreed: all members want the same.
Result<std::shared_ptr<Communicator>> TryToGrow(Communicator* parent, int nranks,
                                                const UniqueId* id, int rank,
                                                const InitOptions& options,
                                                std::optional<UniqueId>* meeting, bool* agreed) {
  if (id != nullptr) *meeting = *id;
  const uint64_t number = parent->NextSplit();
  Growth mine;
  mine.nranks = nranks;
  mine.rank = rank;
  if (id != nullptr) {
    mine.has_id = 1;
    mine.id_name = id->name();
    // Before the all-gather, so that it comes no later than that. Some may have it.
    for (int r = 0; r < parent->nranks(); ++r) {
      if (r != parent->rank()) parent->invitations()->Send(r, number, *id);
    }
  }
  mine.ready = Readiness::Of(bootstrap::EnsureDescriptors(static_cast<size_t>(nranks)));
  Result<std::vector<Growth>> members = Exchange(parent, Purpose::kGrow, mine);
  if (!members.ok()) return members.status();
  const auto of_grow = [&](const Status& status) {
    return Status(status.code(),
                  fmt::format("{}: grow: {}", parent->rank_name(), status.message()));
  };
  int holder = -1;
  if (Status fits = CheckGrowth(*members, &holder); !fits.ok()) return of_grow(fits);
  *agreed = true;
  if (id == nullptr) {
    const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
    Result<UniqueId> sent =
        parent->invitations()->Await(holder, number, deadline, parent->failed_flag());
    if (!sent.ok()) return parent->CauseOf(of_grow(sent.status()));
    *meeting = *std::move(sent);
  }
  // As in a split, the death of a member ends the join, and those who join learn of it. The parent
  // outlives a joiner that fails.
  const Cancel with_parent(parent->failed_flag(), [parent] {
    return parent->CauseOf(RemoteError("the communicator that grows has failed"));
  });
  Result<std::shared_ptr<Communicator>> joined = JoinProcesses(
      nranks, rank, ForJoining(options),
      [&](const JoinOptions& join) {
        JoinOptions as_member = join;
        as_member.members = parent->nranks();
        return JoinWithId(**meeting, as_member);
      },
      with_parent);
  if (!joined.ok()) return parent->CauseOf(joined.status());
  (*joined)->SetLineage({parent->lineage(), {}});
  return joined;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Grow(Communicator* parent, int nranks, const UniqueId* id,
                                           int rank, const InitOptions& options) {
  std::optional<UniqueId> meeting;
  bool agreed = false;
  Result<std::shared_ptr<Communicator>> made =
      TryToGrow(parent, nranks, id, rank, options, &meeting, &agreed);
  // The process that made the id tells those who come to it.
  if (!made.ok() && meeting) WithdrawUniqueId(*meeting, made.status());
  if (!agreed) return made;
  // All members get the new communicator or none: who joins may die when some have it already.
  Result<std::vector<Readiness>> all =
      Exchange(parent, Purpose::kGrow, Readiness::Of(made.status()));
  if (!made.ok()) return made;
  if (!all.ok()) {
    (*made)->AbortAll(all.status());  // those who have joined must not wait for this rank
    return all.status();
  }
  for (size_t member = 0; member < all->size(); ++member) {
    const Readiness& theirs = (*all)[member];
    if (theirs.code == 0) continue;
    (*made)->AbortAll(RemoteError("a member could not join"));
    return RemoteError(fmt::format("{}: grow: rank {} could not join: {}", parent->rank_name(),
                                   member, Escaped(theirs.Why())));
  }
  return made;
}

}  // namespace inccl
