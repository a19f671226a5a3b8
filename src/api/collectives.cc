// SPDX-License-Identifier: Apache-2.0
//
// The collective calls of the C API. Every argument is checked here before the call has any effect.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "api/enums.h"
#include "api/handles.h"
#include "api/submit.h"

namespace inccl {
namespace {

struct Arguments {
  Collective collective;
  const void* send;
  void* recv;
  size_t count;
  ccl_datatype_t type;
  ccl_redop_t op = CCL_SUM;
  int root = 0;
  ccl_comm_t comm;
  ccl_stream_t stream;
};

Status CheckEnums(const Arguments& a) {
  const Result<DataType> type = ToDataType(a.type);
  if (!type.ok()) return type.status();
  const int op = Number(a.op);
  if (op >= 0 && op < kReduceOps) return Status::Ok();
  const PreMulSum* own = FindReduction(a.comm, op);
  if (own == nullptr) {
    return InvalidArgument(fmt::format(
        "op: {}: invalid reduction, neither a ccl_redop_t nor created on this communicator", op));
  }
  if (own->type != *type) {
    return InvalidArgument(
        fmt::format("type: {}, but op {} was made for {}", Name(*type), op, Name(own->type)));
  }
  return Status::Ok();
}

// Buffers may be in place as NCCL defines it; otherwise they must not overlap.
Status CheckOverlap(const Arguments& a, const Extent& extent, size_t element, uint64_t rank) {
  const auto send = reinterpret_cast<uintptr_t>(a.send);
  const auto recv = reinterpret_cast<uintptr_t>(a.recv);
  const uint64_t send_bytes = extent.send * element, recv_bytes = extent.recv * element;
  if (send_bytes == 0 || recv_bytes == 0) return Status::Ok();
  const bool apart = send >= recv ? send - recv >= recv_bytes : recv - send >= send_bytes;
  if (apart) return Status::Ok();
  const uint64_t segment = rank * a.count * element;
  switch (a.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter:  // on the root: elsewhere there is no send buffer
      if (recv == send + segment) return Status::Ok();
      break;
    case Collective::kAllGather:
    case Collective::kGather:  // on the root: elsewhere there is no recv buffer
      if (send == recv + segment) return Status::Ok();
      break;
    case Collective::kAllToAll:
      return InvalidArgument(
          fmt::format("send and recv: {}..+{} and {}..+{} bytes overlap; there is no in-place form",
                      a.send, send_bytes, a.recv, recv_bytes));
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      if (send == recv) return Status::Ok();
  }
  return InvalidArgument(
      fmt::format("send and recv: {}..+{} and {}..+{} bytes overlap and are not the in-place form",
                  a.send, send_bytes, a.recv, recv_bytes));
}

Status Check(const Arguments& a) {
  if (Status status = CheckEnums(a); !status.ok()) return status;
  const int nranks = a.comm->impl->nranks(), rank = a.comm->impl->rank();
  if (a.root < 0 || a.root >= nranks) {
    return InvalidArgument(fmt::format("root: {} is not in [0, {})", a.root, nranks));
  }
  const size_t element = SizeOf(static_cast<DataType>(a.type));
  if (a.count > SIZE_MAX / 2 / element / static_cast<size_t>(nranks)) {
    return InvalidArgument(fmt::format("count: {} elements of {} bytes on {} ranks overflow size_t",
                                       a.count, element, nranks));
  }
  const Extent extent = ExtentOf(a.collective, a.count, nranks, rank == a.root);
  if (a.send == nullptr && extent.send != 0) return InvalidArgument("send: NULL");
  if (a.recv == nullptr && extent.recv != 0) return InvalidArgument("recv: NULL");
  return CheckOverlap(a, extent, element, static_cast<uint64_t>(rank));
}

// Fills the new call field by field: copying a Call that was just written would wait for all its
// stores.
void FillCall(const Arguments& a, Call* out) {
  Call& call = *out;
  call.collective = a.collective;
  call.type = static_cast<DataType>(a.type);
  if (Number(a.op) < kReduceOps) {
    call.op = static_cast<ReduceOp>(Number(a.op));
  } else {
    const PreMulSum* own = FindReduction(a.comm, Number(a.op));
    call.op = ReduceOp::kPreMulSum;
    call.scalar = own->scalar;
    call.scalar_at = own->scalar_at;
  }
  call.nranks = a.comm->impl->nranks();
  call.rank = a.comm->impl->rank();
  call.root = a.root;
  call.count = a.count;
  call.send = a.send;
  call.recv = a.recv;
}

ccl_result_t Run(const Arguments& a) {
  return Submit(a.comm, a.stream, [&](Call* call) -> Status {
    if (Status status = Check(a); !status.ok()) return status;
    FillCall(a, call);
    return Status::Ok();
  });
}

// Reads the caller's options, which may be shorter or longer than this version's struct.
Status ReadOptions(const ccl_compression_t* given, ccl_compression_t* options) {
  *options = CCL_COMPRESSION_INIT;
  if (given == nullptr) return Status::Ok();
  if (given->size < sizeof(size_t) || given->size > 4096) {
    return InvalidArgument(fmt::format(
        "compression->size: {}, must be sizeof(ccl_compression_t); use CCL_COMPRESSION_INIT",
        given->size));
  }
  std::memcpy(options, given, std::min(given->size, sizeof *options));
  if (options->stats != nullptr &&
      (options->stats->size < sizeof(size_t) || options->stats->size > 4096)) {
    return InvalidArgument(fmt::format(
        "compression->stats->size: {}; use CCL_COMPRESSION_STATS_INIT", options->stats->size));
  }
  if (options->codec != nullptr) return CheckCodec(options->codec);
  return Status::Ok();
}

// Sets call->residual, which must fit the call.
Status TakeResidual(ccl_residual_t residual, Call* call) {
  if (Status status = CheckResidual(residual); !status.ok()) {
    return InvalidArgument(fmt::format("compression->{}", status.message()));
  }
  if (!IsFloat(call->type) || SizeOf(call->type) < 2) {
    return InvalidArgument(
        fmt::format("compression->residual: type {} is none of float32, float16, bfloat16, float64",
                    Name(call->type)));
  }
  if (Reduces(call->collective) && call->op != ReduceOp::kSum && call->op != ReduceOp::kAvg) {
    return InvalidArgument(
        fmt::format("compression->residual: reduction {} is neither sum nor avg", Name(call->op)));
  }
  const uint64_t elements = ExtentOf(*call, call->rank, call->nranks).send;
  if (residual->impl->count() != elements) {
    return InvalidArgument(fmt::format("compression->residual: of {} elements, send has {}",
                                       residual->impl->count(), elements));
  }
  call->residual = residual->impl;
  return Status::Ok();
}

ccl_result_t RunCompressed(const Arguments& a, const ccl_compression_t* compression) {
  return Submit(a.comm, a.stream, [&](Call* call) -> Status {
    if (Status status = Check(a); !status.ok()) return status;
    ccl_compression_t options;
    if (Status status = ReadOptions(compression, &options); !status.ok()) return status;
    FillCall(a, call);
    call->compressed_call = true;
    call->codec =
        options.codec != nullptr ? options.codec->impl : a.comm->impl->options().default_codec;
    call->seed = options.seed;
    call->step = options.step;
    call->stats = options.stats;
    if (options.residual == nullptr) return Status::Ok();
    return TakeResidual(options.residual, call);
  });
}

}  // namespace
}  // namespace inccl

using inccl::Collective;

ccl_result_t ccl_allreduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                           ccl_redop_t op, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kAllReduce, send, recv, count, type, op, 0, comm, stream});
}

ccl_result_t ccl_reduce_scatter(const void* send, void* recv, size_t recvcount, ccl_datatype_t type,
                                ccl_redop_t op, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kReduceScatter, send, recv, recvcount, type, op, 0, comm, stream});
}

ccl_result_t ccl_allgather(const void* send, void* recv, size_t sendcount, ccl_datatype_t type,
                           ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(
      {Collective::kAllGather, send, recv, sendcount, type, CCL_SUM, 0, comm, stream});
}

ccl_result_t ccl_broadcast(const void* send, void* recv, size_t count, ccl_datatype_t type,
                           int root, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kBroadcast, send, recv, count, type, CCL_SUM, root, comm, stream});
}

ccl_result_t ccl_reduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                        ccl_redop_t op, int root, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kReduce, send, recv, count, type, op, root, comm, stream});
}

ccl_result_t ccl_alltoall(const void* send, void* recv, size_t count, ccl_datatype_t type,
                          ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kAllToAll, send, recv, count, type, CCL_SUM, 0, comm, stream});
}

ccl_result_t ccl_gather(const void* send, void* recv, size_t count, ccl_datatype_t type, int root,
                        ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kGather, send, recv, count, type, CCL_SUM, root, comm, stream});
}

ccl_result_t ccl_scatter(const void* send, void* recv, size_t count, ccl_datatype_t type, int root,
                         ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run({Collective::kScatter, send, recv, count, type, CCL_SUM, root, comm, stream});
}

ccl_result_t ccl_allreduce_compressed(const void* send, void* recv, size_t count,
                                      ccl_datatype_t type, ccl_redop_t op,
                                      const ccl_compression_t* compression, ccl_comm_t comm,
                                      ccl_stream_t stream) {
  return inccl::RunCompressed(
      {Collective::kAllReduce, send, recv, count, type, op, 0, comm, stream}, compression);
}

ccl_result_t ccl_reduce_scatter_compressed(const void* send, void* recv, size_t recvcount,
                                           ccl_datatype_t type, ccl_redop_t op,
                                           const ccl_compression_t* compression, ccl_comm_t comm,
                                           ccl_stream_t stream) {
  return inccl::RunCompressed(
      {Collective::kReduceScatter, send, recv, recvcount, type, op, 0, comm, stream}, compression);
}

ccl_result_t ccl_allgather_compressed(const void* send, void* recv, size_t sendcount,
                                      ccl_datatype_t type, const ccl_compression_t* compression,
                                      ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::RunCompressed(
      {Collective::kAllGather, send, recv, sendcount, type, CCL_SUM, 0, comm, stream}, compression);
}
