// SPDX-License-Identifier: Apache-2.0
//
// Collectives, sends and receives.
#include "ext/nccl/collectives.h"

#include "ext/nccl/call_config.h"
#include "ext/nccl/communicators.h"
#include "ext/nccl/cuda.h"
#include "ext/nccl/error.h"
#include "ext/nccl/export.h"
#include "ext/nccl/group.h"
#include "ext/nccl/library.h"
#include "ext/nccl/policy.h"
#include "ext/nccl/report.h"

namespace inccl::nccl {
namespace {

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr int kTypes = sizeof kTypeBytes / sizeof kTypeBytes[0];

ccl_datatype_t TypeOf(int type) { return static_cast<ccl_datatype_t>(type); }
ccl_redop_t OpOf(int op) { return static_cast<ccl_redop_t>(op); }

// In NCCL a send and its receive agree on the number of bytes; in libinccl also on the type. So
// they move bytes.
bool AsBytes(size_t count, int type, size_t* bytes) {
  if (type >= 0 && type < kTypes && !__builtin_mul_overflow(count, kTypeBytes[type], bytes)) {
    return true;
  }
  Warn("count %zu of datatype %d: invalid argument", count, type);
  return false;
}

// The arguments of a compressed call; `codec` NULL: the call runs uncompressed.
ccl_compression_t Compression(Kind kind, size_t count, int type, Comm comm, const CallCodec& own) {
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  int account = kOwnCodecs;
  compression.codec = own.codec;
  if (!own.given) {
    const PolicyChoice choice = ChooseByPolicy(kind, count, type, comm);
    compression.codec = choice.codec;
    account = choice.rule;
  }
  static const bool logging = Logging();
  if (!logging) return compression;
  if (account < 0 || (own.given && own.codec == nullptr)) account = kUncompressed;
  size_t bytes = 0;
  if (type < 0 || type >= kTypes || __builtin_mul_overflow(count, kTypeBytes[type], &bytes)) {
    return compression;  // a wrong argument
  }
  CountCall(account, bytes);
  if (compression.codec != nullptr) compression.stats = TakeStats(account, comm);
  return compression;
}

// After the call: one that has failed writes no stats.
ResultCode Compressed(const ccl_compression_t& how, Comm comm, ccl_result_t result) {
  if (result != CCL_SUCCESS) DropStats(how.stats);
  return FromCall(comm, result);
}

}  // namespace

ResultCode AllReduce(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                     CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllReduce, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->allreduce_compressed(send, recv, count, TypeOf(type), OpOf(op),
                                                      &how, comm, StreamOf(stream)));
    }
  }
  return FromCall(
      comm, library->allreduce(send, recv, count, TypeOf(type), OpOf(op), comm, StreamOf(stream)));
}

ResultCode ReduceScatter(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                         CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kReduceScatter, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->reduce_scatter_compressed(send, recv, count, TypeOf(type),
                                                           OpOf(op), &how, comm, StreamOf(stream)));
    }
  }
  return FromCall(comm, library->reduce_scatter(send, recv, count, TypeOf(type), OpOf(op), comm,
                                                StreamOf(stream)));
}

ResultCode AllGather(const void* send, void* recv, size_t count, int type, Comm comm,
                     CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllGather, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->allgather_compressed(send, recv, count, TypeOf(type), &how, comm,
                                                      StreamOf(stream)));
    }
  }
  return FromCall(comm,
                  library->allgather(send, recv, count, TypeOf(type), comm, StreamOf(stream)));
}

}  // namespace inccl::nccl

using inccl::nccl::AsBytes;
using inccl::nccl::Comm;
using inccl::nccl::CudaStream;
using inccl::nccl::Fail;
using inccl::nccl::FindLibrary;
using inccl::nccl::FromCall;
using inccl::nccl::Library;
using inccl::nccl::OpOf;
using inccl::nccl::StreamOf;
using inccl::nccl::TypeOf;

INCCL_NCCL_EXPORT(int, AllReduce,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::AllReduce(send, recv, count, type, op, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, ReduceScatter,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::ReduceScatter(send, recv, count, type, op, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, AllGather,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::AllGather(send, recv, count, type, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, Broadcast,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(
      comm, library->broadcast(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Bcast,
                  (void* buffer, size_t count, int type, int root, Comm comm, CudaStream stream)) {
  return pncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, Reduce,
                  (const void* send, void* recv, size_t count, int type, int op, int root,
                   Comm comm, CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->reduce(send, recv, count, TypeOf(type), OpOf(op), root, comm,
                                        StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, AlltoAll,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->alltoall(send, recv, count, TypeOf(type), comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Gather,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm,
                  library->gather(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Scatter,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm,
                  library->scatter(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Send,
                  (const void* send, size_t count, int type, int peer, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  size_t bytes = 0;
  if (!AsBytes(count, type, &bytes)) return Fail(CCL_INVALID_ARGUMENT);
  return FromCall(comm, library->send(send, bytes, CCL_UINT8, peer, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Recv,
                  (void* recv, size_t count, int type, int peer, Comm comm, CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  size_t bytes = 0;
  if (!AsBytes(count, type, &bytes)) return Fail(CCL_INVALID_ARGUMENT);
  return FromCall(comm, library->recv(recv, bytes, CCL_UINT8, peer, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, RedOpCreatePreMulSum,
                  (int* op, void* scalar, int type, int residence, Comm comm)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  ccl_redop_t made = CCL_SUM;
  const ccl_result_t result =
      library->redop_create_premulsum(op == nullptr ? nullptr : &made, scalar, TypeOf(type),
                                      static_cast<ccl_scalar_residence_t>(residence), comm);
  if (result == CCL_SUCCESS) *op = made;
  return FromCall(comm, result);
}

INCCL_NCCL_EXPORT(int, RedOpDestroy, (int op, Comm comm)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->redop_destroy(OpOf(op), comm));
}
