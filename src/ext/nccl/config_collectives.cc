// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL 2.31 with a configuration each: a codec, and hints, which are checked and have
// no effect.
#include "ext/nccl/call_config.h"
#include "ext/nccl/collectives.h"
#include "ext/nccl/error.h"
#include "ext/nccl/export.h"
#include "ext/nccl/group.h"

using inccl::nccl::CallCodec;
using inccl::nccl::CollConfig;
using inccl::nccl::Comm;
using inccl::nccl::CudaStream;
using inccl::nccl::Fail;
using inccl::nccl::ReadCallConfig;
using inccl::nccl::ResultCode;

INCCL_NCCL_EXPORT(int, AllReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAllReduceConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::AllReduce(send, recv, count, type, op, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, ReduceScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclReduceScatterConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::ReduceScatter(send, recv, count, type, op, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, AllGatherConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAllGatherConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::AllGather(send, recv, count, type, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, BroadcastConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclBroadcastConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclBroadcast(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, int root,
                   Comm comm, CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclReduceConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclReduce(send, recv, count, type, op, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, AlltoAllConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAlltoAllConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclAlltoAll(send, recv, count, type, comm, stream);
}

INCCL_NCCL_EXPORT(int, GatherConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclGatherConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclGather(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclScatterConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclScatter(send, recv, count, type, root, comm, stream);
}
