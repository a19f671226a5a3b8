// SPDX-License-Identifier: Apache-2.0
//
// Collectives, as the functions with and without a configuration call them, and groups.
#ifndef INCCL_EXT_NCCL_COLLECTIVES_H_
#define INCCL_EXT_NCCL_COLLECTIVES_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// The configuration of one call, ncclCollConfig_t, whose list of vendors' options may have a codec
// for the call (inccl/nccl_options.h).
struct CallCodec {
  bool given = false;           // false: the policy decides
  ccl_codec_t codec = nullptr;  // NULL: uncompressed
};

// Checks `config` (NULL: no options) by NCCL's rules and finds the codec. `function` is the name
// for error texts; `compresses`: it may have a codec. Returns CCL_INVALID_ARGUMENT after a warning
// that names the argument.
ResultCode ReadCallConfig(const char* function, const CollConfig* config, bool compresses,
                          CallCodec* codec);

// `own`: the codec of this call.
ResultCode AllReduce(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                     CudaStream stream, const CallCodec& own);
ResultCode ReduceScatter(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                         CudaStream stream, const CallCodec& own);
ResultCode AllGather(const void* send, void* recv, size_t count, int type, Comm comm,
                     CudaStream stream, const CallCodec& own);

}  // namespace inccl::nccl

extern "C" {
int pncclBroadcast(const void* send, void* recv, size_t count, int type, int root,
                   inccl::nccl::Comm comm, inccl::nccl::CudaStream stream);
int pncclReduce(const void* send, void* recv, size_t count, int type, int op, int root,
                inccl::nccl::Comm comm, inccl::nccl::CudaStream stream);
int pncclAlltoAll(const void* send, void* recv, size_t count, int type, inccl::nccl::Comm comm,
                  inccl::nccl::CudaStream stream);
int pncclGather(const void* send, void* recv, size_t count, int type, int root,
                inccl::nccl::Comm comm, inccl::nccl::CudaStream stream);
int pncclScatter(const void* send, void* recv, size_t count, int type, int root,
                 inccl::nccl::Comm comm, inccl::nccl::CudaStream stream);
}

namespace inccl::nccl {

// The calling thread's group.

// True between the thread's ncclGroupStart and the outermost ncclGroupEnd.
bool InGroup();

// Returns `result`. In a group, the outermost ncclGroupEnd returns it, too, and starts nothing:
// for errors that libinccl does not know of.
ResultCode Fail(ResultCode result);

// What a call of the group has started goes on after it: the outermost ncclGroupEnd returns
// ncclInProgress.
void ProgressesAfterGroup();

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_COLLECTIVES_H_
