// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions as these tests call them, without its header: enumerations are ints.
#ifndef INCCL_TESTS_NCCL_FUNCTIONS_H_
#define INCCL_TESTS_NCCL_FUNCTIONS_H_

#include <cstddef>

#include "ext/nccl/types.h"

// NOLINTBEGIN(readability-identifier-naming): NCCL's
extern "C" {
using inccl::nccl::CollConfig;
using inccl::nccl::Config;
using inccl::nccl::UniqueId;
using NcclComm = inccl::nccl::Comm;

const char* ncclGetLastError(NcclComm comm);
const char* ncclGetErrorString(int result);
int ncclGetVersion(int* version);
int ncclGetUniqueId(UniqueId* id);
int ncclCommInitAll(NcclComm* comms, int count, const int* devices);
int ncclCommInitRank(NcclComm* comm, int nranks, UniqueId id, int rank);
int ncclCommInitRankConfig(NcclComm* comm, int nranks, UniqueId id, int rank, Config* config);
int ncclCommInitRankScalable(NcclComm* comm, int nranks, int rank, int ids, UniqueId* id,
                             Config* config);
int ncclCommSplit(NcclComm comm, int color, int key, NcclComm* newcomm, Config* config);
int ncclCommShrink(NcclComm comm, int* excluded, int count, NcclComm* newcomm, Config* config,
                   int flags);
int ncclCommGetUniqueId(NcclComm comm, UniqueId* id);
int ncclCommGrow(NcclComm comm, int nranks, const UniqueId* id, int rank, NcclComm* newcomm,
                 Config* config);
int ncclCommRevoke(NcclComm comm, int flags);
int ncclCommFinalize(NcclComm comm);
int ncclCommDestroy(NcclComm comm);
int ncclCommAbort(NcclComm comm);
int ncclCommGetAsyncError(NcclComm comm, int* error);
int ncclCommCount(NcclComm comm, int* count);
int ncclCommUserRank(NcclComm comm, int* rank);
int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, NcclComm comm,
                  void* stream);
int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op, NcclComm comm,
                      void* stream);
int ncclAllGather(const void* send, void* recv, size_t count, int type, NcclComm comm,
                  void* stream);
int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, NcclComm comm,
                  void* stream);
int ncclBcast(void* buffer, size_t count, int type, int root, NcclComm comm, void* stream);
int ncclReduce(const void* send, void* recv, size_t count, int type, int op, int root,
               NcclComm comm, void* stream);
int ncclAlltoAll(const void* send, void* recv, size_t count, int type, NcclComm comm, void* stream);
int ncclGather(const void* send, void* recv, size_t count, int type, int root, NcclComm comm,
               void* stream);
int ncclScatter(const void* send, void* recv, size_t count, int type, int root, NcclComm comm,
                void* stream);
int ncclSend(const void* send, size_t count, int type, int peer, NcclComm comm, void* stream);
int ncclRecv(void* recv, size_t count, int type, int peer, NcclComm comm, void* stream);
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, NcclComm comm);
int ncclRedOpDestroy(int op, NcclComm comm);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduceConfig(const void* send, void* recv, size_t count, int type, int op, NcclComm comm,
                        void* stream, const CollConfig* config);
int ncclReduceScatterConfig(const void* send, void* recv, size_t count, int type, int op,
                            NcclComm comm, void* stream, const CollConfig* config);
int ncclAllGatherConfig(const void* send, void* recv, size_t count, int type, NcclComm comm,
                        void* stream, const CollConfig* config);
int ncclBroadcastConfig(const void* send, void* recv, size_t count, int type, int root,
                        NcclComm comm, void* stream, const CollConfig* config);
}
// NOLINTEND(readability-identifier-naming)

namespace inccl::test {

inline constexpr int kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6,
                     kInProgress = 7;
inline constexpr int kInt8 = 0, kUint8 = 1, kInt32 = 2, kUint64 = 5, kFloat16 = 6, kFloat32 = 7,
                     kFloat64 = 8;
inline constexpr int kSum = 0;

}  // namespace inccl::test

#endif  // INCCL_TESTS_NCCL_FUNCTIONS_H_
