// SPDX-License-Identifier: Apache-2.0
//
// Sealed anonymous files, which ranks share by passing a descriptor. They have no name in the file
// system, and no peer can change their size, so a mapping stays readable once it is checked.
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

// Creates a sparse file; CommitPages gives it memory. With `peers_read_only` no process can map it
// writable afterwards (only where the kernel has that seal, since Linux 5.1). A kSystemError names
// the size and the limit.
Result<Memfd> CreateMemfd(const char* name, size_t bytes, bool peers_read_only);

// Allocates the pages of [offset, offset + bytes), so that touching them cannot raise SIGBUS.
Status CommitPages(int fd, size_t offset, size_t bytes);

// Maps a peer's file after checking that it is a regular file with a sealed size of exactly
// `bytes`. Returns kInternalError if a check fails and kSystemError if the mapping fails.
Result<Mapping> MapSealed(int fd, size_t bytes, bool writable);

}  // namespace inccl::shm

#endif  // INCCL_MEMORY_MEMFD_H_
