// SPDX-License-Identifier: Apache-2.0
//
// The C API: split and shrink.
#include "init/split_shrink.h"

#include <fmt/format.h>

#include <new>

#include "api/group.h"
#include "api/handles.h"
#include "api/submit.h"

namespace inccl {
namespace {

// The options of the new communicator: the caller's, or else the parent's.
Result<InitOptions> ChildOptions(ccl_comm_t parent, const ccl_config_t* config) {
  if (config == nullptr) return parent->options;
  return ResolveOptions(config);
}

ccl_comm_t Wrap(std::shared_ptr<Communicator> communicator, const InitOptions& options) {
  InitOptions own = options;  // copied first, because it may throw
  ccl_comm_t handle = NewComm();
  handle->impl = std::move(communicator);
  handle->options = std::move(own);
  return handle;
}

// Runs the job at once or, inside a group, at its end in the order of its calls.
Status NowOrInGroup(const std::shared_ptr<Communicator>& parent, std::function<Status()> job) {
  if (Group* group = Group::Current(); group != nullptr) {
    group->Add(parent, std::move(job));
    return Status::Ok();
  }
  return job();
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
      const auto split = [parent = comm->impl, color, key, newcomm,
                          options = *options]() -> Status {
        Result<std::shared_ptr<inccl::Communicator>> made =
            inccl::Split(parent.get(), color, key, options);
        if (!made.ok()) return made.status();
        if (*made != nullptr) *newcomm = inccl::Wrap(*std::move(made), options);
        return Status::Ok();
      };
      return inccl::NowOrInGroup(comm->impl, [parent = comm->impl, split] {
        return inccl::SharingOutOfMemory(parent.get(), split);
      });
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
    return inccl::NowOrInGroup(
        comm->impl,
        [parent = comm->impl, set = *set, newcomm, flags, in_group,
         options = *options]() -> Status {
          // Earlier calls of the group complete first, including those on streams.
          if (in_group && flags == CCL_SHRINK_DEFAULT) parent->WaitIdle();
          if (flags == CCL_SHRINK_ABORT) {
            parent->Abort(inccl::RemoteError(fmt::format(
                "{} shrinks the communicator: calls in progress have ended", parent->rank_name())));
          } else if (!parent->idle()) {
            return InvalidArgument(
                "comm: calls are in progress on streams; synchronize, or pass CCL_SHRINK_ABORT");
          }
          Result<inccl::Shrunk> made = inccl::Shrink(parent.get(), set, options);
          if (!made.ok()) return made.status();
          *newcomm = inccl::Wrap(std::move(made->communicator), options);
          (*newcomm)->inherited_completed = made->last_completed;
          return Status::Ok();
        });
  });
}

ccl_result_t ccl_comm_last_completed(ccl_comm_t comm, uint64_t* operation) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kExists);
    if (!lease.ok()) return lease.status();
    if (operation == nullptr) return InvalidArgument("operation: NULL");
    *operation = comm->inherited_completed ? *comm->inherited_completed : lease->completed();
    return Status::Ok();
  });
}
