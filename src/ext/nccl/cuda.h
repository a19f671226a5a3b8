// SPDX-License-Identifier: Apache-2.0
//
// What libnccl.so.2 asks CUDA's driver. It never loads the driver: a process that uses devices has
// loaded it before it creates a communicator.
#ifndef INCCL_EXT_NCCL_CUDA_H_
#define INCCL_EXT_NCCL_CUDA_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// True once LookForDevices has found the driver. One load.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit
extern constinit bool devices_found;

// Looks for the driver in this process. Returns an error, after a warning, if there is one, but no
// libinccl_cuda.so.0, without which calls would read device memory as memory of the host.
ResultCode LookForDevices();

// The calling thread's current device; 0 if it has none yet.
int CurrentDevice();

// The stream to pass to libinccl. A process without devices has no stream that libinccl could wait
// for, so its calls wait for their results.
inline ccl_stream_t StreamOf(CudaStream stream) {
  return __atomic_load_n(&devices_found, __ATOMIC_RELAXED) ? static_cast<ccl_stream_t>(stream)
                                                           : nullptr;
}

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_CUDA_H_
