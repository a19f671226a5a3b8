// SPDX-License-Identifier: Apache-2.0
//
// Sealed anonymous files: memory to be shared by passing a descriptor. No name exists anywhere, and
// no peer can change the size, so a mapping once checked stays readable.
#ifndef INCCL_MEMORY_MEMFD_H_
#define INCCL_MEMORY_MEMFD_H_

#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"

namespace inccl::shm {

struct Memfd {
  UniqueFd fd;
  Mapping mapping;  // read-write
};

// Sparse: memory comes with CommitPages. With `peers_read_only` nobody can map it writable later on
// (where the kernel has that seal, Linux 5.1). kSystemError names the size needed and the limit.
Result<Memfd> CreateMemfd(const char* name, size_t bytes, bool peers_read_only);

// Puts pages behind [offset, offset + bytes), so that using them cannot raise SIGBUS.
Status CommitPages(int fd, size_t offset, size_t bytes);

// Maps all of a peer's descriptor after checking that it is a regular file whose size is sealed,
// and is `bytes` exactly. kInternalError naming what is wrong; kSystemError if mapping fails.
Result<Mapping> MapSealed(int fd, size_t bytes, bool writable);

}  // namespace inccl::shm

#endif  // INCCL_MEMORY_MEMFD_H_
