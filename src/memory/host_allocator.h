// SPDX-License-Identifier: Apache-2.0
//
// Memory of ccl_mem_alloc. Large pieces are files in memory, so that other processes of the host
// can map them (Region); small ones, and all where there are no such files to be had, are ordinary
// pages.
#ifndef INCCL_MEMORY_HOST_ALLOCATOR_H_
#define INCCL_MEMORY_HOST_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "memory/region.h"

namespace inccl {

// All of this process. Any thread.
class HostAllocator {
 public:
  static HostAllocator& Instance();

  // Zeroed whole pages.
  Result<void*> Allocate(size_t bytes);
  Status Free(void* data);

  // The region that holds [data, data + bytes) and can be shared; else one with generation 0.
  Region Find(const void* data, size_t bytes);

  // After a call has failed: separates whole pages of a region from peers that do not know yet.
  // They keep the pages they know, this process gets others in their place: with the same contents,
  // which the peers must not write; or, where they may, with zeros. The region is not found again.
  enum class Contents : uint8_t { kKept, kLost };
  Status RevokeAccess(const std::byte* begin, const std::byte* end, Contents contents);

 private:
  struct Piece {
    size_t bytes = 0;
    uint64_t generation = 0;  // 0: not shared (any more)
    UniqueFd file;
    // By page: taken away. As large as it will ever be, since a failed call may have no memory.
    std::vector<bool> taken;
  };
  using Pieces = std::map<const std::byte*, Piece>;

  static bool MakePrivate(const std::byte* data, const Piece& piece, size_t first, size_t last);
  Pieces::iterator Holding(const std::byte* data, size_t bytes);
  void ForkedChild();

  std::mutex mutex_;
  Pieces pieces_;
  uint64_t next_generation_ = 1;
  std::atomic<size_t> shared_{0};  // pieces with a generation
};

}  // namespace inccl

#endif  // INCCL_MEMORY_HOST_ALLOCATOR_H_
