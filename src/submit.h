// SPDX-License-Identifier: Apache-2.0
//
// The way of a checked call: at once, onto its stream, or into the thread's group. Calls on memory
// of a device always take a stream of the device.
#ifndef INCCL_SUBMIT_H_
#define INCCL_SUBMIT_H_

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "group.h"
#include "handles.h"

namespace inccl {

// The reduction with this number of the C API, or nullptr.
const PreMulSum* FindReduction(ccl_comm_t comm, int op);

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call);
Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const PointCall& call);

// The stream of a call, nullptr: none. Says in the call whether its memory is a device's.
// kInvalidArgument: there is no such stream, or memory and stream do not go together.
Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         Call* call);
Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         PointCall* call);

// `make` checks the arguments of a call on `comm`, which is ready, and fills it in. Errors get the
// rank in front, and spoil the group.
template <typename AnyCall = Call, typename Make>
ccl_result_t Submit(ccl_comm_t comm, ccl_stream_t stream, Make&& make) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kReady);
    Status status = lease.status();
    if (status.ok()) {
      AnyCall call;
      status = make(&call);
      if (status.ok()) {
        Result<std::shared_ptr<Stream>> found = StreamOf(stream, *comm->impl, &call);
        status = found.ok() ? SubmitCall(comm->impl, *found, call) : found.status();
      }
      if (status.code() == Code::kInvalidArgument) {
        status = InvalidArgument(fmt::format("{}: {}", lease->rank_name(), status.message()));
      }
    }
    if (Group* group = Group::Current(); group != nullptr && !status.ok()) group->Spoil(status);
    return status;
  });
}

}  // namespace inccl

#endif  // INCCL_SUBMIT_H_
