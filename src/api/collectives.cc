// SPDX-License-Identifier: Apache-2.0
//
// The collective calls of the C API. Every argument is checked here before the call has any effect.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "api/submit.h"

namespace inccl {
namespace {

// Sets type, op and the scalar of *call.
Status SetTypeAndOp(const ccl_datatype_t& type, const ccl_redop_t& op, ccl_comm_t comm,
                    Call* call) {
  const Result<DataType> data_type = ToDataType(type);
  if (!data_type.ok()) return data_type.status();
  call->type = *data_type;
  const int number = Number(op);
  if (number >= 0 && number < kReduceOps) {
    call->op = static_cast<ReduceOp>(number);
    return Status::Ok();
  }
  const PreMulSum* own = FindReduction(comm, number);
  if (own == nullptr) {
    return InvalidArgument(fmt::format(
        "op: {}: invalid reduction, neither a ccl_redop_t nor created on this communicator",
        number));
  }
  if (own->type != call->type) {
    return InvalidArgument(fmt::format("type: {}, but op {} was made for {}", Name(call->type),
                                       number, Name(own->type)));
  }
  call->op = ReduceOp::kPreMulSum;
  call->scalar = own->scalar;
  call->scalar_at = own->scalar_at;
  return Status::Ok();
}

// Buffers may be in place as NCCL defines it; otherwise they must not overlap.
Status CheckOverlap(const Call& call, const Extent& extent) {
  const size_t element = SizeOf(call.type);
  const auto send = reinterpret_cast<uintptr_t>(call.send);
  const auto recv = reinterpret_cast<uintptr_t>(call.recv);
  const uint64_t send_bytes = extent.send * element, recv_bytes = extent.recv * element;
  if (send_bytes == 0 || recv_bytes == 0) return Status::Ok();
  const bool apart = send >= recv ? send - recv >= recv_bytes : recv - send >= send_bytes;
  if (apart) return Status::Ok();
  const uint64_t segment = static_cast<uint64_t>(call.rank) * call.bytes();
  switch (call.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter:  // on the root: elsewhere there is no send buffer
      if (recv == send + segment) return Status::Ok();
      break;
    case Collective::kAllGather:
    case Collective::kGather:  // on the root: elsewhere there is no recv buffer
      if (send == recv + segment) return Status::Ok();
      break;
    case Collective::kAllToAll:
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      if (send == recv) return Status::Ok();
  }
  return InvalidArgument(
      fmt::format("send and recv: {}..+{} and {}..+{} bytes overlap and are not the in-place form",
                  call.send, send_bytes, call.recv, recv_bytes));
}

// Whether all ranks' elements can be counted in bytes.
Status CheckCount(const Call& call) {
  const size_t element = SizeOf(call.type);
  if (call.count <= SIZE_MAX / 2 / element / static_cast<size_t>(call.nranks)) return Status::Ok();
  return InvalidArgument(fmt::format("count: {} elements of {} bytes on {} ranks overflow size_t",
                                     call.count, element, call.nranks));
}

// Checks what SetTypeAndOp has not checked.
Status Check(const Call& call) {
  if (call.root < 0 || call.root >= call.nranks) {
    return InvalidArgument(fmt::format("root: {} is not in [0, {})", call.root, call.nranks));
  }
  if (Status status = CheckCount(call); !status.ok()) return status;
  const Extent extent = ExtentOf(call, call.rank, call.nranks);
  if (call.send == nullptr && extent.send != 0) return InvalidArgument("send: NULL");
  if (call.recv == nullptr && extent.recv != 0) return InvalidArgument("recv: NULL");
  return CheckOverlap(call, extent);
}

// Fills in a call and checks its arguments. `type` and `op` may be no values of their types.
Status Make(Collective collective, const void* send, void* recv, size_t count,
            const ccl_datatype_t& type, const ccl_redop_t& op, int root, ccl_comm_t comm,
            Call* call) {
  call->collective = collective;
  call->nranks = comm->impl->nranks();
  call->rank = comm->impl->rank();
  call->root = root;
  call->count = count;
  call->send = send;
  call->recv = recv;
  if (Status status = SetTypeAndOp(type, op, comm, call); !status.ok()) return status;
  return Check(*call);
}

// `complete` sets the rest of the call, whose arguments have been checked.
template <typename Complete>
ccl_result_t Run(Collective collective, const void* send, void* recv, size_t count,
                 ccl_datatype_t type, ccl_redop_t op, int root, ccl_comm_t comm,
                 ccl_stream_t stream, Complete&& complete) {
  return Submit(comm, stream, [&](Call* call) -> Status {
    Status made = Make(collective, send, recv, count, type, op, root, comm, call);
    return made.ok() ? complete(call) : made;
  });
}

ccl_result_t Run(Collective collective, const void* send, void* recv, size_t count,
                 ccl_datatype_t type, ccl_redop_t op, int root, ccl_comm_t comm,
                 ccl_stream_t stream) {
  return Run(collective, send, recv, count, type, op, root, comm, stream,
             [](Call* /*call*/) { return Status::Ok(); });
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

// Sets *taken to a residual of `elements` elements that fits the call. `where`: the struct that has
// it.
Status TakeResidual(const std::string& where, ccl_residual_t residual, const Call& call,
                    uint64_t elements, std::shared_ptr<Residual>* taken) {
  if (Status status = CheckResidual(residual); !status.ok()) {
    return InvalidArgument(fmt::format("{}{}", where, status.message()));
  }
  if (!IsFloat(call.type) || SizeOf(call.type) < 2) {
    return InvalidArgument(
        fmt::format("{}residual: type {} is none of float32, float16, bfloat16, float64", where,
                    Name(call.type)));
  }
  if (Reduces(call.collective) && call.op != ReduceOp::kSum && call.op != ReduceOp::kAvg) {
    return InvalidArgument(
        fmt::format("{}residual: reduction {} is neither sum nor avg", where, Name(call.op)));
  }
  if (residual->impl->count() != elements) {
    return InvalidArgument(fmt::format("{}residual: of {} elements, send has {}", where,
                                       residual->impl->count(), elements));
  }
  *taken = residual->impl;
  return Status::Ok();
}

// Sets what the caller's options say, but the residual.
void TakeOptions(const ccl_compression_t& options, ccl_comm_t comm, Call* call) {
  call->compressed_call = true;
  call->codec =
      options.codec != nullptr ? options.codec->impl : comm->impl->options().default_codec;
  call->seed = options.seed;
  call->step = options.step;
  call->stats = options.stats;
}

ccl_result_t RunCompressed(Collective collective, const void* send, void* recv, size_t count,
                           ccl_datatype_t type, ccl_redop_t op,
                           const ccl_compression_t* compression, ccl_comm_t comm,
                           ccl_stream_t stream) {
  return Run(collective, send, recv, count, type, op, 0, comm, stream, [&](Call* call) -> Status {
    ccl_compression_t options;
    if (Status status = ReadOptions(compression, &options); !status.ok()) return status;
    TakeOptions(options, comm, call);
    if (options.residual == nullptr) return Status::Ok();
    return TakeResidual("compression->", options.residual, *call,
                        ExtentOf(*call, call->rank, call->nranks).send, &call->residual);
  });
}

// Whether no result of one vector overwrites another buffer.
Status CheckApart(const std::vector<FusedVector>& vectors, size_t element) {
  struct Buffer {
    uintptr_t begin, end;
    bool written;
    size_t vector;
  };
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto send = reinterpret_cast<uintptr_t>(vectors[i].send);
    const auto recv = reinterpret_cast<uintptr_t>(vectors[i].recv);
    const size_t bytes = vectors[i].count * element;
    if (bytes == 0) continue;
    buffers.push_back({recv, recv + bytes, true, i});
    if (send != recv) buffers.push_back({send, send + bytes, false, i});
  }
  std::sort(buffers.begin(), buffers.end(),
            [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; });
  Buffer last{}, last_written{};  // of those before, the one with the largest end
  for (const Buffer& buffer : buffers) {
    const Buffer& before = buffer.written ? last : last_written;
    if (buffer.begin < before.end) {
      return InvalidArgument(fmt::format(
          "vectors[{}] and vectors[{}]: their buffers overlap and are not one vector's in-place "
          "form",
          std::min(before.vector, buffer.vector), std::max(before.vector, buffer.vector)));
    }
    if (buffer.end > last.end) last = buffer;
    if (buffer.written && buffer.end > last_written.end) last_written = buffer;
  }
  return Status::Ok();
}

// Fills in an all-reduce of several vectors, whose type and op are set, and checks them.
Status TakeVectors(const ccl_vector_t* vectors, size_t nvectors, Call* call) {
  if (vectors == nullptr && nvectors != 0) return InvalidArgument("vectors: NULL");
  if (nvectors > PTRDIFF_MAX / sizeof *vectors) {
    return InvalidArgument(fmt::format("nvectors: {} do not fit into memory", nvectors));
  }
  std::vector<FusedVector> taken(nvectors);
  std::unordered_set<const Residual*> residuals;
  for (size_t i = 0; i < nvectors; ++i) {
    const ccl_vector_t& given = vectors[i];
    const std::string where = fmt::format("vectors[{}].", i);
    if (given.send == nullptr && given.count != 0) return InvalidArgument(where + "send: NULL");
    if (given.recv == nullptr && given.count != 0) return InvalidArgument(where + "recv: NULL");
    call->count = given.count > SIZE_MAX - call->count ? SIZE_MAX : call->count + given.count;
    if (Status status = CheckCount(*call); !status.ok()) {
      return InvalidArgument(where + std::string(status.message()));
    }
    taken[i] = {given.send, given.recv, given.count, nullptr};
    if (given.residual == nullptr) continue;
    Status status = TakeResidual(where, given.residual, *call, given.count, &taken[i].residual);
    if (!status.ok()) return status;
    if (!residuals.insert(taken[i].residual.get()).second) {
      return InvalidArgument(where + "residual: another vector has it, too");
    }
  }
  if (Status status = CheckApart(taken, SizeOf(call->type)); !status.ok()) return status;
  call->vectors = std::make_shared<const std::vector<FusedVector>>(std::move(taken));
  return Status::Ok();
}

// Completes an all-reduce by the reducer of `state`, which has set type and count.
Status TakeReducer(ccl_reducer_state_t state, const ccl_compression_t* compression, Call* call) {
  if (call->op != ReduceOp::kSum && call->op != ReduceOp::kAvg) {
    return InvalidArgument(fmt::format("op: {} is neither sum nor avg", Name(call->op)));
  }
  ccl_compression_t options;
  if (Status status = ReadOptions(compression, &options); !status.ok()) return status;
  if (options.codec != nullptr) {
    return InvalidArgument("compression->codec: must be NULL: the reducer names its codec");
  }
  if (options.residual != nullptr) {
    return InvalidArgument("compression->residual: must be NULL: the state has its own");
  }
  call->seed = options.seed;
  call->step = options.step;
  call->stats = options.stats;
  call->reducer = state->impl;
  return Status::Ok();
}

}  // namespace

void WarmUpCalls(ccl_comm_t comm) {
  (void)Run(Collective::kAllReduce, nullptr, nullptr, 0, CCL_FLOAT32, CCL_SUM, 0, comm, nullptr,
            [](Call* call) {
              call->purpose = Purpose::kWarmUp;
              return Status::Ok();
            });
}
}  // namespace inccl

using inccl::Collective;

ccl_result_t ccl_allreduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                           ccl_redop_t op, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kAllReduce, send, recv, count, type, op, 0, comm, stream);
}

ccl_result_t ccl_reduce_scatter(const void* send, void* recv, size_t recvcount, ccl_datatype_t type,
                                ccl_redop_t op, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kReduceScatter, send, recv, recvcount, type, op, 0, comm, stream);
}

ccl_result_t ccl_allgather(const void* send, void* recv, size_t sendcount, ccl_datatype_t type,
                           ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kAllGather, send, recv, sendcount, type, CCL_SUM, 0, comm, stream);
}

ccl_result_t ccl_broadcast(const void* send, void* recv, size_t count, ccl_datatype_t type,
                           int root, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kBroadcast, send, recv, count, type, CCL_SUM, root, comm, stream);
}

ccl_result_t ccl_reduce(const void* send, void* recv, size_t count, ccl_datatype_t type,
                        ccl_redop_t op, int root, ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kReduce, send, recv, count, type, op, root, comm, stream);
}

ccl_result_t ccl_alltoall(const void* send, void* recv, size_t count, ccl_datatype_t type,
                          ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kAllToAll, send, recv, count, type, CCL_SUM, 0, comm, stream);
}

ccl_result_t ccl_gather(const void* send, void* recv, size_t count, ccl_datatype_t type, int root,
                        ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kGather, send, recv, count, type, CCL_SUM, root, comm, stream);
}

ccl_result_t ccl_scatter(const void* send, void* recv, size_t count, ccl_datatype_t type, int root,
                         ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Run(Collective::kScatter, send, recv, count, type, CCL_SUM, root, comm, stream);
}

ccl_result_t ccl_allreduce_compressed(const void* send, void* recv, size_t count,
                                      ccl_datatype_t type, ccl_redop_t op,
                                      const ccl_compression_t* compression, ccl_comm_t comm,
                                      ccl_stream_t stream) {
  return inccl::RunCompressed(Collective::kAllReduce, send, recv, count, type, op, compression,
                              comm, stream);
}

ccl_result_t ccl_allreduce_fused(const ccl_vector_t* vectors, size_t nvectors, ccl_datatype_t type,
                                 ccl_redop_t op, const ccl_compression_t* compression,
                                 ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Submit(comm, stream, [&](inccl::Call* call) -> inccl::Status {
    inccl::Status status =
        inccl::Make(Collective::kAllReduce, nullptr, nullptr, 0, type, op, 0, comm, call);
    if (status.ok()) status = inccl::TakeVectors(vectors, nvectors, call);
    if (!status.ok()) return status;
    ccl_compression_t options;
    if (status = inccl::ReadOptions(compression, &options); !status.ok()) return status;
    if (options.residual != nullptr) {
      return inccl::InvalidArgument("compression->residual: must be NULL: vectors have their own");
    }
    inccl::TakeOptions(options, comm, call);
    return status;
  });
}

ccl_result_t ccl_reduce_scatter_compressed(const void* send, void* recv, size_t recvcount,
                                           ccl_datatype_t type, ccl_redop_t op,
                                           const ccl_compression_t* compression, ccl_comm_t comm,
                                           ccl_stream_t stream) {
  return inccl::RunCompressed(Collective::kReduceScatter, send, recv, recvcount, type, op,
                              compression, comm, stream);
}

ccl_result_t ccl_allgather_compressed(const void* send, void* recv, size_t sendcount,
                                      ccl_datatype_t type, const ccl_compression_t* compression,
                                      ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::RunCompressed(Collective::kAllGather, send, recv, sendcount, type, CCL_SUM,
                              compression, comm, stream);
}

ccl_result_t ccl_allreduce_reduced(const void* send, void* recv, ccl_reducer_state_t state,
                                   ccl_redop_t op, const ccl_compression_t* compression,
                                   ccl_comm_t comm, ccl_stream_t stream) {
  return inccl::Submit(comm, stream, [&](inccl::Call* call) -> inccl::Status {
    if (inccl::Status status = inccl::CheckReducerState(state); !status.ok()) return status;
    const inccl::TensorDesc& tensor = state->impl->tensor();
    inccl::Status made = inccl::Make(Collective::kAllReduce, send, recv, tensor.count(),
                                     static_cast<ccl_datatype_t>(tensor.type), op, 0, comm, call);
    return made.ok() ? inccl::TakeReducer(state, compression, call) : made;
  });
}

// The C API: sends, receives and groups.

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
