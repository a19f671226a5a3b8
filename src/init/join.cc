// SPDX-License-Identifier: Apache-2.0
#include "init/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "control/loop.h"
#include "device/runtime.h"
#include "init/slot_memory.h"
#include "init/thread_transports.h"
#include "init/transport_selection.h"
#include "tuning/slot_budget.h"

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
// longest between two ranks.
uint32_t LongestRoundTripUs(const Mesh& mesh) {
  uint32_t longest = 0;
  for (const Peer& peer : mesh.peers) longest = std::max(longest, peer.info.round_trip_us);
  return longest;
}

Result<std::shared_ptr<Communicator>> Join(int nranks, int rank, const InitOptions& options,
                                           const JoinFunction& join,
                                           const std::atomic<bool>* cancelled) {
  FAULT_RANK(rank);
  FAULT_POINT("init.begin");
  if (Status status = control::Loop::Get().CheckProcess(); !status.ok()) return status;
  JoinOptions join_options;
  join_options.rank = rank;
  join_options.nranks = nranks;
  join_options.timeout_ms = options.init_timeout_ms;
  join_options.deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
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
  join_options.prepare = [&](Mesh* mesh, bootstrap::RendezvousClient* rendezvous) {
    std::vector<uint64_t> identities;
    for (const Peer& peer : mesh->peers) identities.push_back(peer.info.host_id);
    hosts = HostMap(identities);
    if (Status offers = transport.TakeOffers(*mesh); !offers.ok()) return offers;
    comm.tuner_table.SetLink(transport.slowest_link_mbps(), LongestRoundTripUs(*mesh));
    end = transport.Choose({.mesh = mesh,
                            .rendezvous = rendezvous,
                            .limits = {.deadline = join_options.deadline,
                                       .timeout_ms = options.init_timeout_ms,
                                       .under_way = UnderWay(comm.tuner_table.costs(), &hosts),
                                       .check = [rendezvous] { return rendezvous->Check(); }}},
                           hosts);
    return end.status();
  };
  Result<Mesh> mesh = join(join_options);
  if (!mesh.ok()) {
    if (end.ok()) (*end)->Quiesce(SystemClock().Now());  // nobody waits for what it has sent
    return mesh.status();
  }
  const std::string name = (*end)->caps().name;

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
  Log(LogLevel::kInfo, LogSubsystem::kInit, "{} joined over {}: {}", communicator->rank_name(),
      name, options.agreement);
  if (const uint64_t under_way = UnderWay(comm.tuner_table.costs(), &hosts); under_way > 0) {
    constexpr double kNsPerMs = 1e6;
    const auto latency_ns = static_cast<double>(comm.tuner_table.costs().network_latency_ns);
    Log(LogLevel::kInfo, LogSubsystem::kInit,
        "{}: long links between hosts: a round trip of {:.1f} ms, {} bytes under way",
        communicator->rank_name(), 2 * latency_ns / kNsPerMs, under_way);
  }
  FAULT_POINT("init.before_return");
  communicator->Begin();
  return communicator;
}

}  // namespace

Result<std::shared_ptr<Communicator>> JoinProcesses(int nranks, int rank,
                                                    const InitOptions& options,
                                                    const JoinFunction& join,
                                                    const std::atomic<bool>* cancelled) {
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

}  // namespace inccl
