// SPDX-License-Identifier: Apache-2.0
//
// Host memory of ccl_mem_alloc. Large pieces are memory files that peers on the host can map
// (Region). Small pieces are anonymous pages, and so is every piece where the kernel refuses memory
// files.
#ifndef INCCL_MEMORY_HOST_ALLOCATOR_H_
#define INCCL_MEMORY_HOST_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "memory/region.h"

namespace inccl {

// Learns of memory whose pages are about to go, in the thread that frees or replaces them.
class FreeObserver {
 public:
  virtual ~FreeObserver() = default;
  virtual void OnFree(const std::byte* begin, const std::byte* end) = 0;
  // RevokeAccess. Who reads the old pages may go on, but reads them anew no more.
  virtual void OnReplace(const std::byte* begin, const std::byte* end) = 0;
};

// The allocator of this process; any thread may use it.
class HostAllocator {
 public:
  static HostAllocator& Instance();

  // From here on, until Forget, the observer is called. A child of fork has no observers.
  void Observe(FreeObserver* observer);
  void Forget(FreeObserver* observer);
  // Tells the observers that memory of another allocator is about to be freed.
  void Announce(const std::byte* begin, const std::byte* end);

  // Returns zeroed whole pages.
  Result<void*> Allocate(size_t bytes);
  Status Free(void* data);

  // The region that contains [data, data + bytes). Its generation is 0 if no piece contains the
  // range or the piece cannot be shared.
  Region Find(const void* data, size_t bytes);

  // Why Find returns no region.
  Status WhyNotShared(const void* data, size_t bytes);

  // Detaches whole pages of a region from peers after a call has failed. Peers keep the old pages;
  // this process gets new ones in their place: kKept copies the contents (for memory that peers
  // only read), kLost gives zeros (for memory that peers may still write). Find no longer returns
  // the region.
  enum class Contents : uint8_t { kKept, kLost };
  Status RevokeAccess(const std::byte* begin, const std::byte* end, Contents contents);

 private:
  struct Piece {
    size_t bytes = 0;
    uint64_t generation = 0;  // 0: not shared, or not any more
    UniqueFd file;
    // Per page: RevokeAccess has replaced it. Sized by Allocate, because a failed call may find no
    // memory.
    std::vector<bool> taken;
  };
  using Pieces = std::map<const std::byte*, Piece>;

  static bool MakePrivate(const std::byte* data, const Piece& piece, size_t first, size_t last);
  Pieces::iterator Holding(const std::byte* data, size_t bytes) INCCL_REQUIRES(mutex_);
  void ForkedChild() INCCL_REQUIRES(mutex_, observers_mutex_);

  Mutex observers_mutex_;  // taken before mutex_
  std::vector<FreeObserver*> observers_ INCCL_GUARDED_BY(observers_mutex_);
  Mutex mutex_;
  Pieces pieces_ INCCL_GUARDED_BY(mutex_);
  uint64_t next_generation_ INCCL_GUARDED_BY(mutex_) = 1;
  std::atomic<size_t> shared_{0};  // pieces with a generation
};

}  // namespace inccl

#endif  // INCCL_MEMORY_HOST_ALLOCATOR_H_
