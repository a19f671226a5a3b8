// SPDX-License-Identifier: Apache-2.0
#include "join.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"

namespace inccl {
namespace {

std::string PeerName(const std::string& host, int pid) { return fmt::format("{}:{}", host, pid); }

// The shm transport between threads of one process (INCCL_TRANSPORT=shm).
Result<std::vector<std::unique_ptr<Transport>>> MakeShmInProcess(int nranks) {
  std::vector<std::unique_ptr<ShmTransport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    Result<std::unique_ptr<ShmTransport>> end = ShmTransport::Create(rank, nranks);
    if (!end.ok()) return end.status();
    ends.push_back(*std::move(end));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank) continue;
      const std::vector<int> fds = ends[static_cast<size_t>(peer)]->fds_to_share();
      UniqueFd arena(fcntl(fds[0], F_DUPFD_CLOEXEC, 0)), bell(fcntl(fds[1], F_DUPFD_CLOEXEC, 0));
      if (!arena.valid() || !bell.valid()) return SystemErrorErrno("dup of a memfd", errno);
      Status status =
          ends[static_cast<size_t>(rank)]->Attach(peer, std::move(arena), std::move(bell));
      if (!status.ok()) return status;
    }
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::unique_ptr<ShmTransport>& end : ends) transports.push_back(std::move(end));
  return transports;
}

}  // namespace

Result<std::shared_ptr<Communicator>> JoinProcesses(int nranks, int rank,
                                                    const InitOptions& options,
                                                    const JoinFunction& join,
                                                    const std::atomic<bool>* cancelled) {
  if (!options.transport.empty() && options.transport != "shm") {
    return InvalidArgument(fmt::format(
        "INCCL_TRANSPORT: {} cannot join ranks of different processes in this version; shm can",
        options.transport));
  }
  FAULT_RANK(rank);
  FAULT_POINT("init.begin");
  Result<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(rank, nranks, {});
  if (!shm.ok()) return shm.status();
  FAULT_POINT("shm.after_create");
  JoinOptions join_options;
  join_options.rank = rank;
  join_options.nranks = nranks;
  join_options.timeout_ms = options.init_timeout_ms;
  join_options.deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  join_options.agreement = options.agreement;
  join_options.share_fds = (*shm)->fds_to_share();
  join_options.secret_file = options.environment.secret_file;
  join_options.host_id = options.environment.hostid;
  join_options.cancelled = cancelled;
  Result<Mesh> mesh = join(join_options);
  if (!mesh.ok()) return mesh.status();

  CommEnds ends;
  ends.rank = rank;
  ends.nranks = nranks;
  for (Peer& peer : mesh->peers) {
    ends.peer_names.push_back(PeerName(peer.info.host, peer.info.pid));
    ends.pids.push_back(peer.info.pid);
    if (peer.info.rank == rank) continue;
    if (peer.fds.size() != join_options.share_fds.size()) {
      return InternalError(fmt::format("rank {}/{}: peer {} shared {} descriptors instead of {}",
                                       rank, nranks, peer.info.rank, peer.fds.size(),
                                       join_options.share_fds.size()));
    }
    Status status = (*shm)->Attach(peer.info.rank, std::move(peer.fds[0]), std::move(peer.fds[1]));
    if (!status.ok()) return status;
  }
  FAULT_POINT("init.after_attach");
  ends.transport = WithLink(*std::move(shm), options.link);
  auto communicator = std::make_shared<Communicator>(std::move(ends), options.comm);
  FAULT_POINT("control.before_start");
  Result<std::unique_ptr<ControlPlane>> control =
      StartControl(*std::move(mesh), communicator->liveness(), options.control);
  if (!control.ok()) return control.status();
  communicator->AttachControl(*std::move(control));
  Log(LogLevel::kInfo, LogSubsystem::kInit, "rank {}/{} joined over shm: {}", rank, nranks,
      options.agreement);
  FAULT_POINT("init.before_return");
  return communicator;
}

Result<std::vector<std::shared_ptr<Communicator>>> MakeThreads(int nranks,
                                                               const InitOptions& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  if (options.transport.empty() || options.transport == "loopback") {
    transports = MakeLoopback(nranks);
    if (transports.empty()) return SystemError("loopback: no address space for the ranks' slots");
  } else {
    Result<std::vector<std::unique_ptr<Transport>>> shm = MakeShmInProcess(nranks);
    if (!shm.ok()) return shm.status();
    transports = *std::move(shm);
  }
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  std::vector<std::shared_ptr<Communicator>> communicators;
  std::vector<ControlHandler*> handlers;
  for (int rank = 0; rank < nranks; ++rank) {
    CommEnds ends;
    ends.rank = rank;
    ends.nranks = nranks;
    ends.pids.assign(static_cast<size_t>(nranks), getpid());
    ends.peer_names.assign(static_cast<size_t>(nranks), PeerName(host, getpid()));
    ends.transport = WithLink(std::move(transports[static_cast<size_t>(rank)]), options.link);
    communicators.push_back(std::make_shared<Communicator>(std::move(ends), options.comm));
    handlers.push_back(communicators.back()->liveness());
  }
  Result<std::vector<std::unique_ptr<ControlPlane>>> planes = MakeLocalControl(handlers);
  if (!planes.ok()) return planes.status();
  for (size_t i = 0; i < communicators.size(); ++i) {
    communicators[i]->AttachControl(std::move((*planes)[i]));
  }
  return communicators;
}

}  // namespace inccl
