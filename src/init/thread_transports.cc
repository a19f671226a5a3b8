// SPDX-License-Identifier: Apache-2.0
#include "init/thread_transports.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "bootstrap/crypto.h"
#include "init/transport_selection.h"
#include "transport/loopback/loopback.h"
#include "transport/transport_factory.h"

namespace inccl {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

using Factories = std::vector<std::unique_ptr<TransportFactory>>;

// What the ranks' meshes would be, as far as Connect needs them; there are no control connections.
Result<std::vector<Mesh>> MeshesInProcess(int nranks) {
  bootstrap::Mac key{};
  bootstrap::HandshakeTerms terms;
  terms.role = bootstrap::Role::kData;
  if (Status status = bootstrap::FillRandom(key); !status.ok()) return status;
  if (Status status = bootstrap::FillRandom(terms.communicator); !status.ok()) return status;
  terms.key = bootstrap::Key(key);
  std::vector<Mesh> meshes(static_cast<size_t>(nranks));
  std::vector<std::shared_ptr<bootstrap::ServerKey>> keys;
  for (int rank = 0; rank < nranks; ++rank) {
    Result<std::shared_ptr<bootstrap::ServerKey>> own = bootstrap::ServerKey::Create();
    if (!own.ok()) return own.status();
    keys.push_back(*std::move(own));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    Mesh& mesh = meshes[static_cast<size_t>(rank)];
    mesh.rank = rank;
    mesh.nranks = nranks;
    mesh.data_terms = terms;
    mesh.data_terms.own = keys[static_cast<size_t>(rank)];
    mesh.peers.resize(meshes.size());
    for (int peer = 0; peer < nranks; ++peer) {
      mesh.peers[static_cast<size_t>(peer)].info = {
          .rank = peer,
          .pid = getpid(),
          .host = "localhost",
          .blob = {},
          .key = keys[static_cast<size_t>(peer)]->public_key()};
    }
  }
  return meshes;
}

// Each rank's Connect in a thread of its own, because they wait for each other.
Status ConnectInProcess(const Factories& ends, const Environment& environment) {
  Result<std::vector<Mesh>> meshes = MeshesInProcess(static_cast<int>(ends.size()));
  if (!meshes.ok()) return meshes.status();
  std::atomic<bool> failed{false};
  const int timeout_ms = environment.init_timeout_ms;
  const ConnectLimits limits{.deadline = SystemClock().Now() + timeout_ms * kMillisecond,
                             .timeout_ms = timeout_ms,
                             .check = [&failed] {
                               return failed ? RemoteError("another rank has failed")
                                             : Status::Ok();
                             }};
  std::vector<Status> statuses(ends.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    Result<std::thread> thread = StartThread("inccl-connect", [&, rank] {
      statuses[rank] =
          CatchOutOfMemory([&] { return ends[rank]->Connect((*meshes)[rank], limits); });
      if (!statuses[rank].ok()) failed = true;
    });
    if (!thread.ok()) {
      statuses[rank] = thread.status();
      failed = true;
      break;
    }
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  const auto first = std::find_if(statuses.begin(), statuses.end(), [](const Status& status) {
    return !status.ok() && status.code() != Code::kRemoteError;
  });
  if (first != statuses.end()) return *first;
  return failed ? RemoteError("the ranks could not connect") : Status::Ok();
}

// The ranks share one process, so their descriptors are duplicated, as a socket would do.
Result<Transports> JoinInProcess(const std::string& name, int nranks,
                                 const Environment& environment, bool for_device) {
  Factories ends;
  for (int rank = 0; rank < nranks; ++rank) {
    Result<std::unique_ptr<TransportFactory>> end = RowOf(name).make(
        {.rank = rank, .nranks = nranks, .environment = &environment, .for_device = for_device});
    if (!end.ok()) return end.status();
    ends.push_back(*std::move(end));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    for (int other = 0; other < nranks; ++other) {
      if (other == rank) continue;
      Peer peer;
      peer.info = {.rank = other, .pid = getpid(), .host = "localhost", .blob = {}};
      for (const int fd : ends[static_cast<size_t>(other)]->fds_to_share()) {
        peer.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (!peer.fds.back().valid()) return SystemErrorErrno("dup of a memfd", errno);
      }
      Status status = ends[static_cast<size_t>(rank)]->Attach(
          &peer, ends[static_cast<size_t>(other)]->payload());
      if (!status.ok()) return status;
    }
  }
  if (RowOf(name).connects) {
    if (Status status = ConnectInProcess(ends, environment); !status.ok()) return status;
  }
  Transports transports;
  for (std::unique_ptr<TransportFactory>& end : ends)
    transports.push_back(end->Take(/*alone=*/true));
  return transports;
}

Result<Transports> MakeInProcess(const std::string& name, int nranks,
                                 const Environment& environment, bool for_device) {
  if (name != "loopback") return JoinInProcess(name, nranks, environment, for_device);
  Transports transports =
      MakeLoopback(nranks, {.commit_ahead = for_device ? CommitAhead(nranks, true) : 0});
  if (transports.empty()) return SystemError("no address space for the ranks' slots");
  return transports;
}

}  // namespace

Result<std::vector<std::unique_ptr<Transport>>> MakeThreadTransports(int nranks,
                                                                     const Environment& environment,
                                                                     bool for_device) {
  std::string reasons;
  Code code = Code::kSystemError;
  for (const std::string& name : TransportNames(environment, {"loopback"})) {
    Result<Transports> made = MakeInProcess(name, nranks, environment, for_device);
    if (made.ok()) return made;
    code = made.status().code();
    AddReason(name, made.status().message(), &reasons);
  }
  return Status(code, fmt::format("no common transport{}: {}", OfVariable(environment), reasons));
}

}  // namespace inccl
