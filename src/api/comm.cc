// SPDX-License-Identifier: Apache-2.0
//
// Creates communicators (by unique id, from the launcher's environment, and for threads of one
// process) and ends them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "api/submit.h"
#include "base/thread.h"
#include "base/types.h"
#include "bootstrap/bootstrap.h"
#include "device/runtime.h"
#include "init/join.h"
#include "init/options.h"

namespace inccl {
namespace {

Status CheckRanks(int nranks, int rank) {
  if (nranks < 1 || nranks > kMaxRanks) {
    return InvalidArgument(fmt::format("nranks: {} is not in [1, {}]", nranks, kMaxRanks));
  }
  if (rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank: {} is not in [0, {})", rank, nranks));
  }
  return Status::Ok();
}

Status CheckDevices(int count, const int* devices) {
  if (devices == nullptr) return Status::Ok();
  Device* const device = LookForDevice();
  if (device == nullptr) {
    return InvalidArgument(fmt::format("devices: must be NULL: {}", WhyNoDevice()));
  }
  for (int i = 0; i < count; ++i) {
    if (devices[i] >= 0 && devices[i] < device->Count()) continue;
    return InvalidArgument(
        fmt::format("devices[{}]: {} is not in [0, {})", i, devices[i], device->Count()));
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
  return inccl::GuardedInGroup([&]() -> Status {
    if (comm == nullptr) return InvalidArgument("comm: NULL");
    *comm = nullptr;
    if (Status status = inccl::CheckRanks(nranks, rank); !status.ok()) return status;
    Result<inccl::UniqueId> decoded =
        inccl::UniqueId::Decode(reinterpret_cast<const std::byte*>(id.internal));
    if (!decoded.ok()) return decoded.status();
    Result<inccl::InitOptions> options = inccl::ResolveOptions(config);
    if (!options.ok()) return options.status();
    const auto join = [id = *decoded](const inccl::JoinOptions& with) {
      return inccl::JoinWithId(id, with);
    };
    return inccl::Create(
        comm, *options,
        [nranks, rank, options = *options, join](const std::atomic<bool>* cancelled) {
          return inccl::JoinProcesses(nranks, rank, options, join, cancelled);
        });
  });
}

ccl_result_t ccl_comm_init_rank(ccl_comm_t* comm, int nranks, ccl_unique_id_t id, int rank) {
  return ccl_comm_init_rank_config(comm, nranks, id, rank, nullptr);
}

ccl_result_t ccl_comm_init_env(ccl_comm_t* comm, const ccl_config_t* config) {
  return inccl::GuardedInGroup([&]() -> Status {
    if (comm == nullptr) return InvalidArgument("comm: NULL");
    *comm = nullptr;
    Result<inccl::InitOptions> options = inccl::ResolveOptions(config);
    if (!options.ok()) return options.status();
    Result<inccl::Launcher> found = inccl::FindLauncher(secure_getenv);
    if (!found.ok()) return found.status();
    Status status = inccl::CheckRanks(found->nranks, found->rank);
    if (!status.ok()) return status;
    const std::string& address = options->environment.comm_id;
    // On one host the launcher need not be asked.
    inccl::LauncherStore* const store = found->elsewhere.empty() || !address.empty()
                                            ? nullptr
                                            : inccl::FindLauncherStore(*found, secure_getenv);
    if (!found->elsewhere.empty() && address.empty() && store == nullptr) {
      return inccl::InvalidUsage(fmt::format(
          "{}: {}, and it offers neither PMIx nor PMI; INCCL_COMM_ID=host:port, where rank 0 "
          "listens, and INCCL_SECRET_FILE join ranks of several hosts, as does a unique id of "
          "the program's",
          found->kind, found->elsewhere));
    }
    const auto number = std::make_shared<inccl::CreationNumber>(found->job + "\n" + address);
    const auto join = [launcher = *found, address, store, environment = options->environment,
                       number](const inccl::JoinOptions& with) {
      Result<inccl::Mesh> mesh =
          store != nullptr ? inccl::JoinByStore(store, launcher, number->value(), environment, with)
          : address.empty() ? inccl::JoinWithLauncher(launcher, number->value(), with)
                            : inccl::JoinAtAddress(address, launcher, number->value(), with);
      number->Settle(mesh.status());
      return mesh;
    };
    return inccl::Create(comm, *options,
                         [nranks = found->nranks, rank = found->rank, options = *options,
                          join](const std::atomic<bool>* cancelled) {
                           return inccl::JoinProcesses(nranks, rank, options, join, cancelled);
                         });
  });
}

ccl_result_t ccl_comm_init_all(ccl_comm_t* comms, int ndev, const int* devices) {
  return Guarded([&]() -> Status {
    if (comms == nullptr) return InvalidArgument("comms: NULL");
    if (Status status = inccl::CheckRanks(ndev, 0); !status.ok()) return status;
    if (Status status = inccl::CheckDevices(ndev, devices); !status.ok()) return status;
    Result<inccl::InitOptions> options = inccl::ResolveOptions(nullptr);
    if (!options.ok()) return options.status();
    Result<std::vector<std::shared_ptr<inccl::Communicator>>> made =
        inccl::MakeThreads(ndev, *options);
    if (!made.ok()) return made.status();
    // The caller gets all handles or none.
    std::fill(comms, comms + ndev, nullptr);
    Status status = inccl::CatchOutOfMemory([&] {
      for (size_t i = 0; i < made->size(); ++i) {
        comms[i] = inccl::NewComm();
        inccl::Publish(comms[i], std::move((*made)[i]));
        comms[i]->options = *options;
        if (devices == nullptr) continue;
        comms[i]->device = devices[i];
        comms[i]->impl->PrepareOn(devices[i]);
      }
      return Status::Ok();
    });
    if (status.ok()) return status;
    for (int i = 0; i < ndev && comms[i] != nullptr; ++i) {
      (void)inccl::TakeForFree(comms[i]);
      inccl::FreeComm(std::exchange(comms[i], nullptr));
    }
    return status;
  });
}

// ---------------------------------------------------------------- the end

ccl_result_t ccl_comm_finalize(ccl_comm_t comm) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kReady);
    if (!lease.ok()) return lease.status();
    using State = ccl_comm::State;
    Status in_progress{inccl::Code::kInProgress, "the communicator is being finalized"};
    comm->state.store(State::kFinalizing);
    const auto finish = [comm] {
      comm->impl->WaitIdle();
      comm->state.store(State::kFinalized);
    };
    if (comm->options.blocking) {
      finish();
      return lease->error();
    }
    if (comm->background.joinable()) comm->background.join();  // has made the communicator
    Status started = inccl::CatchOutOfMemory([&]() -> Status {
      Result<std::thread> thread = inccl::StartThread("inccl-finalize", finish);
      if (!thread.ok()) return thread.status();
      comm->background = *std::move(thread);
      return Status::Ok();
    });
    if (started.ok()) return in_progress;
    comm->state.store(State::kReady);
    return started;
  });
}

ccl_result_t ccl_comm_destroy(ccl_comm_t comm) {
  if (comm == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    if (Status status = inccl::TakeForFree(comm); !status.ok()) return status;
    if (!comm->delivered.exchange(true)) return Status::Ok();
    if (comm->state.load() == ccl_comm::State::kDividing) {
      inccl::AbortAndFree(comm);
      return Status::Ok();
    }
    // If it is still being created, the creation stops.
    comm->cancelled.store(true);
    inccl::FreeComm(comm);
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_abort(ccl_comm_t comm) {
  if (comm == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    if (Status status = inccl::TakeForFree(comm); !status.ok()) return status;
    if (comm->delivered.exchange(true)) inccl::AbortAndFree(comm);
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_set_timeout(ccl_comm_t comm, int op_timeout_ms) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    if (op_timeout_ms < 0 || op_timeout_ms > inccl::kMaxTimeoutMs) {
      return InvalidArgument(
          fmt::format("op_timeout_ms: {} is not in [0, {}]", op_timeout_ms, inccl::kMaxTimeoutMs));
    }
    lease->SetOpTimeout(op_timeout_ms == 0 ? lease->options().op_timeout
                                           : op_timeout_ms * inccl::kMillisecond);
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_revoke(ccl_comm_t comm) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    lease->Revoke();
    return Status::Ok();
  });
}
