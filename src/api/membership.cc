// SPDX-License-Identifier: Apache-2.0
//
// The C API: communicators of communicators: split, shrink, grow.
#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "api/handles.h"
#include "api/submit.h"
#include "base/thread.h"
#include "init/join.h"

namespace inccl {
namespace {

// The options of the new communicator: the caller's, or else the parent's.
Result<InitOptions> ChildOptions(ccl_comm_t parent, const ccl_config_t* config) {
  if (config == nullptr) return parent->options;
  return ResolveOptions(config);
}

// What a split, shrink or growth makes; nullptr: a split without a colour.
using Made = Result<std::shared_ptr<Communicator>>;

// A split, shrink or growth whose arguments are checked.
struct Division {
  std::function<Made()> run;
  bool takes_part = true;  // false: a split without a colour
};

Status DivideNow(const Division& division, const InitOptions& options, ccl_comm_t* newcomm) {
  InitOptions own = options;  // copied first, because it may throw
  Made made = division.run();
  if (!made.ok()) return made.status();
  if (*made == nullptr) return Status::Ok();
  ccl_comm_t handle = NewComm();
  handle->options = std::move(own);
  Publish(handle, std::move(made));
  *newcomm = handle;
  return Status::Ok();
}

Made RunGuarded(const Division& division) {
  try {
    return division.run();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& e) {
    return CatchOutOfMemory([&] { return SystemError(fmt::format("a split: {}", e.what())); });
  }
}

// The thread of a division with blocking = 0. The order of the steps: who has seen that either
// communicator is no longer in progress can use both.
void Deliver(ccl_comm_t parent, ccl_comm_t child, ccl_comm::State before, Made made) {
  if (child != nullptr) Publish(child, std::move(made));
  parent->state.store(before);
  // The caller has ended it meanwhile.
  if (child != nullptr && child->delivered.exchange(true)) AbortAndFree(child);
}

Status DivideInBackground(ccl_comm_t parent, const Division& division, const InitOptions& options,
                          ccl_comm_t* newcomm) {
  using State = ccl_comm::State;
  Status in_progress{Code::kInProgress, "the new communicator is being created"};
  const State before = parent->state.load();
  if (before == State::kDividing || before == State::kFinalizing) {
    return InvalidArgument(
        "comm: a split, a shrink or its finalization is in progress; wait while "
        "ccl_comm_get_async_error says CCL_IN_PROGRESS");
  }
  if (parent->background.joinable()) parent->background.join();
  ccl_comm_t child = nullptr;
  const Status started = CatchOutOfMemory([&]() -> Status {
    if (division.takes_part) {
      child = NewComm();
      child->state.store(State::kCreating);
      child->options = options;
      child->delivered.store(false);
    }
    parent->state.store(State::kDividing);
    Result<std::thread> thread = StartThread("inccl-split", [parent, child, before, division] {
      Deliver(parent, child, before, RunGuarded(division));
    });
    if (!thread.ok()) return thread.status();
    parent->background = *std::move(thread);
    return Status::Ok();
  });
  if (started.ok()) {
    *newcomm = child;
    return in_progress;
  }
  parent->state.store(before);
  if (child != nullptr) {
    (void)TakeForFree(child);
    FreeComm(child);
  }
  return parent->impl->MakeSticky(started);  // so that the other ranks do not wait
}

// Runs the division at once, in the background, or, inside a group, at its end in the order of its
// calls.
Status Divide(ccl_comm_t parent, Division division, const InitOptions& options,
              ccl_comm_t* newcomm) {
  if (Group* group = Group::Current(); group != nullptr) {
    group->Add(parent->impl, [division = std::move(division), options, newcomm] {
      return DivideNow(division, options, newcomm);
    });
    return Status::Ok();
  }
  if (options.blocking) return DivideNow(division, options, newcomm);
  return DivideInBackground(parent, division, options, newcomm);
}

// For a split, in which all ranks of `parent` take part: running out of memory fails the parent, so
// that the other ranks do not wait.
template <typename Function>
Status SharingOutOfMemory(Communicator* parent, const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    Status status = parent->MakeSticky(OutOfMemory());
    if (Group* group = Group::Current(); group != nullptr) group->Spoil(status, true);
    return status;
  }
}

// A split or a growth: `make` runs with `parent`, and running out of memory fails both.
template <typename Make>
std::function<Made()> Sharing(std::shared_ptr<Communicator> parent, Make make) {
  return [parent = std::move(parent), make = std::move(make)]() -> Made {
    std::shared_ptr<Communicator> child;
    const Status status = SharingOutOfMemory(parent.get(), [&]() -> Status {
      Made made = make(parent.get());
      if (!made.ok()) return made.status();
      child = *std::move(made);
      return Status::Ok();
    });
    if (!status.ok()) return status;
    return child;
  };
}

Result<RankSet> ReadExcluded(const int* excluded, int nexcluded, int rank, int nranks) {
  if (nexcluded < 0 || nexcluded > nranks) {
    return InvalidArgument(fmt::format("nexcluded: {} is not in [0, {}]", nexcluded, nranks));
  }
  if (nexcluded > 0 && excluded == nullptr) return InvalidArgument("excluded: NULL");
  RankSet set(nranks);
  for (int i = 0; i < nexcluded; ++i) {
    if (excluded[i] < 0 || excluded[i] >= nranks) {
      return InvalidArgument(
          fmt::format("excluded[{}]: {} is not in [0, {})", i, excluded[i], nranks));
    }
    if (excluded[i] == rank) {
      return InvalidArgument(fmt::format("excluded[{}]: {} is this rank itself", i, rank));
    }
    set.Add(excluded[i]);
  }
  return set;
}

}  // namespace
}  // namespace inccl

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Lease;
using inccl::Need;
using inccl::Result;
using inccl::Status;

ccl_result_t ccl_comm_split(ccl_comm_t comm, int color, int key, ccl_comm_t* newcomm,
                            const ccl_config_t* config) {
  return inccl::GuardedInGroup([&]() -> Status {
    const Lease lease(comm, Need::kReady);
    if (!lease.ok()) return lease.status();
    if (newcomm == nullptr) return InvalidArgument("newcomm: NULL");
    *newcomm = nullptr;
    if (color < CCL_SPLIT_NOCOLOR) {
      return InvalidArgument(
          fmt::format("color: {} is neither >= 0 nor CCL_SPLIT_NOCOLOR (-1)", color));
    }
    return inccl::SharingOutOfMemory(comm->impl.get(), [&]() -> Status {
      Result<inccl::InitOptions> options = inccl::ChildOptions(comm, config);
      if (!options.ok()) return options.status();
      const auto split =
          inccl::Sharing(comm->impl, [color, key, options = *options](inccl::Communicator* parent) {
            return inccl::Split(parent, color, key, options);
          });
      return inccl::Divide(comm, {split, color != CCL_SPLIT_NOCOLOR}, *options, newcomm);
    });
  });
}

ccl_result_t ccl_comm_shrink(ccl_comm_t comm, const int* excluded, int nexcluded,
                             ccl_comm_t* newcomm, const ccl_config_t* config, int flags) {
  return inccl::GuardedInGroup([&]() -> Status {
    const Lease lease(comm, Need::kExists);
    if (!lease.ok()) return lease.status();
    if (newcomm == nullptr) return InvalidArgument("newcomm: NULL");
    *newcomm = nullptr;
    if (flags != CCL_SHRINK_DEFAULT && flags != CCL_SHRINK_ABORT) {
      return InvalidArgument(
          fmt::format("flags: {} is neither CCL_SHRINK_DEFAULT nor CCL_SHRINK_ABORT", flags));
    }
    Result<inccl::RankSet> set =
        inccl::ReadExcluded(excluded, nexcluded, lease->rank(), lease->nranks());
    if (!set.ok()) return set.status();
    Result<inccl::InitOptions> options = inccl::ChildOptions(comm, config);
    if (!options.ok()) return options.status();
    const bool in_group = inccl::Group::Current() != nullptr;
    const auto shrink = [parent = comm->impl, set = *set, flags, in_group,
                         options = *options]() -> inccl::Made {
      // Earlier calls of the group complete first, including those on streams.
      if (in_group && flags == CCL_SHRINK_DEFAULT) parent->WaitIdle();
      if (flags == CCL_SHRINK_ABORT) {
        parent->Abort(inccl::RemoteError(fmt::format(
            "{} shrinks the communicator: calls in progress have ended", parent->rank_name())));
      } else if (!parent->idle()) {
        return InvalidArgument(
            "comm: calls are in progress on streams; synchronize, or pass CCL_SHRINK_ABORT");
      }
      return inccl::Shrink(parent.get(), set, options);
    };
    return inccl::Divide(comm, {shrink}, *options, newcomm);
  });
}

ccl_result_t ccl_comm_get_unique_id(ccl_comm_t comm, ccl_unique_id_t* id) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kReady);
    if (!lease.ok()) return lease.status();
    if (id == nullptr) return InvalidArgument("id: NULL");
    // After a failure this process goes on, so its rank need not stay to tell those who come late.
    Result<inccl::UniqueId> made =
        inccl::CreateUniqueId(comm->options.environment, /*at_once=*/true);
    if (!made.ok()) return made.status();
    comm->WithdrawInvitation();
    comm->invitation = *made;
    made->Encode(reinterpret_cast<std::byte*>(id->internal));
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_grow(ccl_comm_t comm, int nranks, const ccl_unique_id_t* id, int rank,
                           ccl_comm_t* newcomm, const ccl_config_t* config) {
  if (comm == nullptr && id != nullptr) {
    return ccl_comm_init_rank_config(newcomm, nranks, *id, rank, config);
  }
  return inccl::GuardedInGroup([&]() -> Status {
    if (comm == nullptr) {
      return InvalidArgument("comm and id: both NULL; a rank that joins passes the id");
    }
    const Lease lease(comm, Need::kReady);
    if (!lease.ok()) return lease.status();
    if (newcomm == nullptr) return InvalidArgument("newcomm: NULL");
    *newcomm = nullptr;
    if (nranks <= lease->nranks() || nranks > inccl::kMaxRanks) {
      return InvalidArgument(
          fmt::format("nranks: {} is not in ({}, {}]", nranks, lease->nranks(), inccl::kMaxRanks));
    }
    if (rank < -1 || rank >= nranks) {
      return InvalidArgument(
          fmt::format("rank: {} is neither -1, for that in comm, nor in [0, {})", rank, nranks));
    }
    std::optional<inccl::UniqueId> meeting;
    if (id != nullptr) {
      Result<inccl::UniqueId> decoded =
          inccl::UniqueId::Decode(reinterpret_cast<const std::byte*>(id->internal));
      if (!decoded.ok()) return decoded.status();
      meeting = *std::move(decoded);
    }
    return inccl::SharingOutOfMemory(comm->impl.get(), [&]() -> Status {
      Result<inccl::InitOptions> options = inccl::ChildOptions(comm, config);
      if (!options.ok()) return options.status();
      const auto grow =
          inccl::Sharing(comm->impl, [nranks, meeting, rank = rank < 0 ? lease->rank() : rank,
                                      options = *options](inccl::Communicator* parent) {
            parent->WaitIdle();  // so that the order of calls is the same on all ranks
            return inccl::Grow(parent, nranks, meeting ? &*meeting : nullptr, rank, options);
          });
      return inccl::Divide(comm, {grow}, *options, newcomm);
    });
  });
}

ccl_result_t ccl_comm_last_completed(ccl_comm_t comm, uint64_t* operation) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kExists);
    if (!lease.ok()) return lease.status();
    if (operation == nullptr) return InvalidArgument("operation: NULL");
    *operation = lease->lineage().completed().value_or(lease->completed());
    return Status::Ok();
  });
}
