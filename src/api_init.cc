// SPDX-License-Identifier: Apache-2.0
//
// Creation of communicators: by unique id, from the launcher's environment, and for threads of one
// process.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/log.h"
#include "handles.h"
#include "init.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"

namespace inccl {
namespace {

constexpr int kMaxRanks = 64;

Status CheckRanks(int nranks, int rank) {
  if (nranks < 1 || nranks > kMaxRanks) {
    return InvalidArgument(fmt::format("nranks: {} is not in [1, {}]", nranks, kMaxRanks));
  }
  if (rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank: {} is not in [0, {})", rank, nranks));
  }
  return Status::Ok();
}

std::string PeerName(const std::string& host, int pid) { return fmt::format("{}:{}", host, pid); }

ccl_comm_t NewHandle(std::unique_ptr<Communicator> communicator) {
  auto handle = std::make_unique<ccl_comm>();
  handle->impl = std::move(communicator);
  return handle.release();
}

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

// Shared memory between processes: what is common to joining by id and by launcher.
template <typename Join>
Status InitProcess(int nranks, int rank, const InitOptions& options, Join&& join,
                   ccl_comm_t* comm) {
  if (!options.transport.empty() && options.transport != "shm") {
    return InvalidArgument(fmt::format(
        "INCCL_TRANSPORT: {} cannot join ranks of different processes in this version; shm can",
        options.transport));
  }
  Result<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(rank, nranks, {});
  if (!shm.ok()) return shm.status();
  JoinOptions join_options;
  join_options.rank = rank;
  join_options.nranks = nranks;
  join_options.timeout_ms = options.init_timeout_ms;
  join_options.deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  join_options.agreement = options.agreement;
  join_options.share_fds = (*shm)->fds_to_share();
  join_options.secret_file = options.environment.secret_file;
  join_options.host_id = options.environment.hostid;
  Result<Mesh> mesh = join(join_options);
  if (!mesh.ok()) return mesh.status();

  CommEnds ends;
  ends.rank = rank;
  ends.nranks = nranks;
  ends.ranks_on_host = nranks;
  for (Peer& peer : mesh->peers) {
    ends.peer_names.push_back(PeerName(peer.info.host, peer.info.pid));
    if (peer.info.rank == rank) continue;
    if (peer.fds.size() != join_options.share_fds.size()) {
      return InternalError(fmt::format("rank {}/{}: peer {} shared {} descriptors instead of {}",
                                       rank, nranks, peer.info.rank, peer.fds.size(),
                                       join_options.share_fds.size()));
    }
    Status status = (*shm)->Attach(peer.info.rank, std::move(peer.fds[0]), std::move(peer.fds[1]));
    if (!status.ok()) return status;
  }
  ends.transport = WithLink(*std::move(shm), options.link);
  auto communicator = std::make_unique<Communicator>(std::move(ends), options.comm);
  Result<std::unique_ptr<ControlPlane>> control =
      StartControl(*std::move(mesh), communicator->liveness());
  if (!control.ok()) return control.status();
  communicator->AttachControl(*std::move(control));
  Log(LogLevel::kInfo, LogSubsystem::kInit, "rank {}/{} joined over shm: {}", rank, nranks,
      options.agreement);
  *comm = NewHandle(std::move(communicator));
  return Status::Ok();
}

Status InitThreads(ccl_comm_t* comms, int nranks) {
  Result<InitOptions> options = ResolveOptions(nullptr);
  if (!options.ok()) return options.status();
  std::vector<std::unique_ptr<Transport>> transports;
  if (options->transport.empty() || options->transport == "loopback") {
    transports = MakeLoopback(nranks);
    if (transports.empty()) return SystemError("loopback: no address space for the ranks' slots");
  } else {
    Result<std::vector<std::unique_ptr<Transport>>> shm = MakeShmInProcess(nranks);
    if (!shm.ok()) return shm.status();
    transports = *std::move(shm);
  }
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<ControlHandler*> handlers;
  for (int rank = 0; rank < nranks; ++rank) {
    CommEnds ends;
    ends.rank = rank;
    ends.nranks = ends.ranks_on_host = nranks;
    ends.peer_names.assign(static_cast<size_t>(nranks), PeerName(host, getpid()));
    ends.transport = WithLink(std::move(transports[static_cast<size_t>(rank)]), options->link);
    communicators.push_back(std::make_unique<Communicator>(std::move(ends), options->comm));
    handlers.push_back(communicators.back()->liveness());
  }
  Result<std::vector<std::unique_ptr<ControlPlane>>> planes = MakeLocalControl(handlers);
  if (!planes.ok()) return planes.status();
  for (size_t i = 0; i < communicators.size(); ++i) {
    communicators[i]->AttachControl(std::move((*planes)[i]));
    comms[i] = NewHandle(std::move(communicators[i]));
  }
  return Status::Ok();
}

}  // namespace
}  // namespace inccl

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Result;
using inccl::Status;

ccl_result_t ccl_get_unique_id(ccl_unique_id_t* id) {
  return Guarded([&]() -> Status {
    if (id == nullptr) return InvalidArgument("id: NULL");
    Result<inccl::InitOptions> options = inccl::ResolveOptions(nullptr);
    if (!options.ok()) return options.status();
    Result<inccl::UniqueId> made = inccl::CreateUniqueId(options->environment);
    if (!made.ok()) return made.status();
    static_assert(sizeof id->internal == inccl::kUniqueIdBytes);
    made->Encode(reinterpret_cast<std::byte*>(id->internal));
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_init_rank_config(ccl_comm_t* comm, int nranks, ccl_unique_id_t id, int rank,
                                       const ccl_config_t* config) {
  return Guarded([&]() -> Status {
    if (comm == nullptr) return InvalidArgument("comm: NULL");
    *comm = nullptr;
    if (Status status = inccl::CheckRanks(nranks, rank); !status.ok()) return status;
    Result<inccl::UniqueId> decoded =
        inccl::UniqueId::Decode(reinterpret_cast<const std::byte*>(id.internal));
    if (!decoded.ok()) return decoded.status();
    Result<inccl::InitOptions> options = inccl::ResolveOptions(config);
    if (!options.ok()) return options.status();
    return inccl::InitProcess(
        nranks, rank, *options,
        [&](const inccl::JoinOptions& join) { return inccl::JoinWithId(*decoded, join); }, comm);
  });
}

ccl_result_t ccl_comm_init_rank(ccl_comm_t* comm, int nranks, ccl_unique_id_t id, int rank) {
  return ccl_comm_init_rank_config(comm, nranks, id, rank, nullptr);
}

ccl_result_t ccl_comm_init_env(ccl_comm_t* comm, const ccl_config_t* config) {
  return Guarded([&]() -> Status {
    if (comm == nullptr) return InvalidArgument("comm: NULL");
    *comm = nullptr;
    Result<inccl::InitOptions> options = inccl::ResolveOptions(config);
    if (!options.ok()) return options.status();
    Result<inccl::Launcher> launcher = inccl::FindLauncher(secure_getenv);
    if (!launcher.ok()) return launcher.status();
    Status status = inccl::CheckRanks(launcher->nranks, launcher->rank);
    if (!status.ok()) return status;
    static std::atomic<int> calls{0};
    const int index = calls.fetch_add(1);
    return inccl::InitProcess(
        launcher->nranks, launcher->rank, *options,
        [&](const inccl::JoinOptions& join) {
          return inccl::JoinWithLauncher(*launcher, index, join);
        },
        comm);
  });
}

ccl_result_t ccl_comm_init_all(ccl_comm_t* comms, int ndev, const int* devices) {
  return Guarded([&]() -> Status {
    if (comms == nullptr) return InvalidArgument("comms: NULL");
    if (devices != nullptr) {
      return InvalidArgument("devices: must be NULL, this version has no devices");
    }
    if (Status status = inccl::CheckRanks(ndev, 0); !status.ok()) return status;
    return inccl::InitThreads(comms, ndev);
  });
}
