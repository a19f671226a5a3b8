// SPDX-License-Identifier: Apache-2.0
//
// The C API: sends, receives and groups.
#include <fmt/format.h>

#include "api/enums.h"
#include "api/group.h"
#include "api/handles.h"
#include "api/submit.h"

namespace inccl {
namespace {

ccl_result_t SubmitSendRecv(bool is_send, const void* send, void* recv, size_t count,
                            ccl_datatype_t type, int peer, ccl_comm_t comm, ccl_stream_t stream) {
  return Submit(comm, stream, [&](Call* call) -> Status {
    const Result<DataType> data_type = ToDataType(type);
    if (!data_type.ok()) return data_type.status();
    const int nranks = comm->impl->nranks(), rank = comm->impl->rank();
    if (peer < 0 || peer >= nranks) {
      return InvalidArgument(fmt::format("peer: {} is not in [0, {})", peer, nranks));
    }
    if (peer == rank && Group::Current() == nullptr) {
      return InvalidArgument(
          "peer: is this rank itself, which takes a group with both ccl_send and ccl_recv");
    }
    if (count > kMostSendRecvElements) {
      return InvalidArgument(
          fmt::format("count: {} elements, at most {}", count, kMostSendRecvElements));
    }
    if (count > 0 && is_send && send == nullptr) return InvalidArgument("send: NULL");
    if (count > 0 && !is_send && recv == nullptr) return InvalidArgument("recv: NULL");
    call->kind = is_send ? CallKind::kSend : CallKind::kRecv;
    call->peer = peer;
    call->type = *data_type;
    call->count = count;
    call->send = send;
    call->recv = recv;
    return Status::Ok();
  });
}

}  // namespace
}  // namespace inccl

using inccl::Guarded;
using inccl::Status;

ccl_result_t ccl_send(const void* send, size_t count, ccl_datatype_t type, int peer,
                      ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::SubmitSendRecv(true, send, nullptr, count, type, peer, comm, stream);
}

ccl_result_t ccl_recv(void* recv, size_t count, ccl_datatype_t type, int peer, ccl_comm_t comm,
                      ccl_stream_t stream) {
  return inccl::SubmitSendRecv(false, nullptr, recv, count, type, peer, comm, stream);
}

ccl_result_t ccl_group_start(void) {
  return Guarded([&]() -> Status {
    inccl::Group::Start();
    return Status::Ok();
  });
}

ccl_result_t ccl_group_end(void) {
  return Guarded([&]() -> Status { return inccl::Group::End(); });
}
