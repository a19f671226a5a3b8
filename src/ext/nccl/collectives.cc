// SPDX-License-Identifier: Apache-2.0
//
// Collectives, sends and receives.
#include "ext/nccl/communicators.h"
#include "ext/nccl/cuda.h"
#include "ext/nccl/error.h"
#include "ext/nccl/export.h"
#include "ext/nccl/group.h"
#include "ext/nccl/library.h"
#include "ext/nccl/policy.h"

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

// The arguments of a compressed call by the policy; `codec` NULL: the call runs uncompressed.
ccl_compression_t Compression(Kind kind, size_t count, int type, Comm comm) {
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  compression.codec = CodecOf(kind, count, type, comm);
  return compression;
}

}  // namespace
}  // namespace inccl::nccl

using inccl::nccl::AsBytes;
using inccl::nccl::Comm;
using inccl::nccl::Compression;
using inccl::nccl::CudaStream;
using inccl::nccl::Fail;
using inccl::nccl::FindLibrary;
using inccl::nccl::FromCall;
using inccl::nccl::Kind;
using inccl::nccl::Library;
using inccl::nccl::OpOf;
using inccl::nccl::StreamOf;
using inccl::nccl::TypeOf;

INCCL_NCCL_EXPORT(int, AllReduce,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->policy, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllReduce, count, type, comm);
    if (how.codec != nullptr) {
      return FromCall(comm, library->allreduce_compressed(send, recv, count, TypeOf(type), OpOf(op),
                                                          &how, comm, StreamOf(stream)));
    }
  }
  return FromCall(
      comm, library->allreduce(send, recv, count, TypeOf(type), OpOf(op), comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, ReduceScatter,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->policy, 0)) {
    const ccl_compression_t how = Compression(Kind::kReduceScatter, count, type, comm);
    if (how.codec != nullptr) {
      return FromCall(
          comm, library->reduce_scatter_compressed(send, recv, count, TypeOf(type), OpOf(op), &how,
                                                   comm, StreamOf(stream)));
    }
  }
  return FromCall(comm, library->reduce_scatter(send, recv, count, TypeOf(type), OpOf(op), comm,
                                                StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, AllGather,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->policy, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllGather, count, type, comm);
    if (how.codec != nullptr) {
      return FromCall(comm, library->allgather_compressed(send, recv, count, TypeOf(type), &how,
                                                          comm, StreamOf(stream)));
    }
  }
  return FromCall(comm,
                  library->allgather(send, recv, count, TypeOf(type), comm, StreamOf(stream)));
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

// The calls of NCCL 2.31 with a configuration each. It holds hints, which do not change results.
INCCL_NCCL_EXPORT(int, AllReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclAllReduce(send, recv, count, type, op, comm, stream);
}

INCCL_NCCL_EXPORT(int, ReduceScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclReduceScatter(send, recv, count, type, op, comm, stream);
}

INCCL_NCCL_EXPORT(int, AllGatherConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclAllGather(send, recv, count, type, comm, stream);
}

INCCL_NCCL_EXPORT(int, BroadcastConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclBroadcast(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, int root,
                   Comm comm, CudaStream stream, const void* /*config*/)) {
  return pncclReduce(send, recv, count, type, op, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, AlltoAllConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclAlltoAll(send, recv, count, type, comm, stream);
}

INCCL_NCCL_EXPORT(int, GatherConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclGather(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const void* /*config*/)) {
  return pncclScatter(send, recv, count, type, root, comm, stream);
}
