// SPDX-License-Identifier: Apache-2.0
//
// Submits a checked call: runs it at once, puts it on its stream, or adds it to the thread's group.
// Calls on device memory always use a stream of the device.
#ifndef INCCL_API_SUBMIT_H_
#define INCCL_API_SUBMIT_H_

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "api/group.h"
#include "api/handles.h"

namespace inccl {

// The reduction with this number of the C API, or nullptr.
const PreMulSum* FindReduction(ccl_comm_t comm, int op);

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call);

// Runs the code of a call on `comm`, which is ready, without effects: its first execution would
// take the user's first call longer than a small call takes.
void WarmUpCalls(ccl_comm_t comm);

// Returns the stream of a call, or nullptr for none, and sets call->on_device and call->device.
// kInvalidArgument if there is no such stream, or if it does not fit the memory of the buffers.
Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         Call* call);

// As Guarded, for calls that create communicators: an error spoils the open group.
template <typename Function>
ccl_result_t GuardedInGroup(Function&& function) {
  return Guarded([&]() -> Status {
    Status status = CatchOutOfMemory(function);
    Group* const group = Group::Current();
    if (group != nullptr && !status.ok() && status.code() != Code::kInProgress) {
      group->Spoil(status, false);
    }
    return status;
  });
}

// `make` checks the arguments of a call on `comm`, which is ready, and fills in *call. Texts about
// wrong arguments get the rank as a prefix; any other error becomes sticky, because the other ranks
// wait for this call. Both spoil the open group.
template <typename Make>
ccl_result_t Submit(ccl_comm_t comm, ccl_stream_t stream, Make&& make) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kReady);
    Status status = lease.status();
    bool fatal = false;
    if (status.ok()) {
      status = comm->impl->MakeSticky(CatchOutOfMemory([&]() -> Status {
        Call call;
        Status made = make(&call);
        if (made.ok()) {
          Result<std::shared_ptr<Stream>> found = StreamOf(stream, *comm->impl, &call);
          made = found.ok() ? SubmitCall(comm->impl, *found, call) : found.status();
        }
        if (made.code() != Code::kInvalidArgument) return made;
        return InvalidArgument(fmt::format("{}: {}", lease->rank_name(), made.message()));
      }));
      fatal = !status.ok() && status.code() != Code::kInvalidArgument;
    }
    if (Group* group = Group::Current(); group != nullptr && !status.ok()) {
      group->Spoil(status, fatal);
    }
    return status;
  });
}

}  // namespace inccl

#endif  // INCCL_API_SUBMIT_H_
