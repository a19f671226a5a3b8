// SPDX-License-Identifier: Apache-2.0
//
// libinccl as libnccl.so.2 uses it: opened at the first call that needs it, because LD_PRELOAD
// brings libnccl.so.2 into programs that never call NCCL. This library needs libc only.
#ifndef INCCL_EXT_NCCL_LIBRARY_H_
#define INCCL_EXT_NCCL_LIBRARY_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// The functions of libinccl that this library calls.
#define INCCL_NCCL_FUNCTIONS(X) \
  X(allgather)                  \
  X(allgather_compressed)       \
  X(allreduce)                  \
  X(allreduce_compressed)       \
  X(alltoall)                   \
  X(broadcast)                  \
  X(codec_create)               \
  X(codec_destroy)              \
  X(codec_spec)                 \
  X(comm_abort)                 \
  X(comm_count)                 \
  X(comm_deregister)            \
  X(comm_destroy)               \
  X(comm_device)                \
  X(comm_finalize)              \
  X(comm_get_async_error)       \
  X(comm_get_unique_id)         \
  X(comm_grow)                  \
  X(comm_init_all)              \
  X(comm_init_rank_config)      \
  X(comm_register)              \
  X(comm_revoke)                \
  X(comm_shrink)                \
  X(comm_split)                 \
  X(comm_user_rank)             \
  X(gather)                     \
  X(get_last_error)             \
  X(get_unique_id)              \
  X(get_version)                \
  X(group_end)                  \
  X(group_start)                \
  X(mem_alloc)                  \
  X(mem_alloc_device)           \
  X(mem_free)                   \
  X(recv)                       \
  X(redop_create_premulsum)     \
  X(redop_destroy)              \
  X(reduce)                     \
  X(reduce_scatter)             \
  X(reduce_scatter_compressed)  \
  X(scatter)                    \
  X(send)                       \
  X(set_log_function)           \
  X(set_variable)

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares `name`
#define INCCL_NCCL_FIELD(name) decltype(&::ccl_##name) name;
  INCCL_NCCL_FUNCTIONS(INCCL_NCCL_FIELD)
#undef INCCL_NCCL_FIELD
  // INCCL_NCCL_POLICY has rules, or INCCL_NCCL_LOG is 1. Calls look for a rule only then.
  bool looks;
};

// Set once, by OpenLibrary.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit
extern constinit const Library* opened_library;

// Opens libinccl, once per process: INCCL_LIBRARY, or libinccl.so.0 in this library's directory, or
// in the directory above it, or in the loader's search path. Any thread. Returns nullptr, after a
// warning, if there is none.
const Library* OpenLibrary();

inline const Library* FindLibrary() {
  const Library* const library = __atomic_load_n(&opened_library, __ATOMIC_ACQUIRE);
  return __builtin_expect(library != nullptr, 1) ? library : OpenLibrary();
}

// What libnccl.so.2 asks CUDA's driver. It never loads the driver: a process that uses devices has
// loaded it before it creates a communicator.

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

// The version of NCCL that libnccl.so.2 reports.

inline constexpr int kDefaultVersion = 23007;           // 2.30.7
inline constexpr int kFirstVersionWithTimeout = 23000;  // older callers do not know ncclTimeout

// INCCL_NCCL_VERSION, as "2.29.7" or 22907; else kDefaultVersion.
int ReportedVersion();

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_LIBRARY_H_
