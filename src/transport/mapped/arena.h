// SPDX-License-Identifier: Apache-2.0
//
// The two ends of an arena (layout.h): the owner allocates memory and announces it in a directory;
// peers look it up.
#ifndef INCCL_TRANSPORT_MAPPED_ARENA_H_
#define INCCL_TRANSPORT_MAPPED_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "transport/mapped/layout.h"

namespace inccl::mapped {

// The memory of an arena: fully reserved address space that gets pages as the arena grows.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // Backs [offset, offset + bytes), both multiples of kPage, with zeroed memory. A kSystemError
  // names the needed size and the limit.
  virtual Status Commit(size_t offset, size_t bytes) = 0;
};

// The owner's end; one thread at a time. It never frees memory: lanes live as long as their
// transport.
class Arena {
 public:
  // Writes the header. `memory` has at least kDataOffset + kPage bytes.
  static Result<std::unique_ptr<Arena>> Create(std::unique_ptr<ArenaMemory> memory, int rank,
                                               int nranks);

  // Commits `bytes` of data and one page of the directory ahead of use. If memory is missing,
  // Allocate and Announce try again later and report the error.
  void CommitAhead(size_t bytes);
  // Returns the offset of zeroed memory. `alignment` is a power of two up to kPage.
  Result<uint64_t> Allocate(size_t bytes, size_t alignment);
  // A block of the region table, below kRegionBlocks. Allocates those that are missing up to it;
  // fails if there is no memory.
  Result<RegionBlock*> Regions(uint32_t block);
  // Makes the entry visible to peers.
  Status Announce(const DirectoryEntry& entry);

  std::byte* At(uint64_t offset) const { return memory_->data() + offset; }
  // Total size of the data part.
  uint64_t data_bytes() const { return memory_->bytes() - kDataOffset; }
  // End offset of the committed data.
  size_t committed() const { return committed_end_; }
  uint64_t memory_bytes() const { return committed_end_ - kDataOffset + directory_end_; }
  // The largest slot that fits into an empty arena of `bytes`.
  static uint32_t MaxSlotBytes(size_t bytes);

 private:
  Arena(std::unique_ptr<ArenaMemory> memory, int rank, int nranks)
      : memory_(std::move(memory)), rank_(rank), nranks_(nranks) {}
  ArenaHeader* header() const { return reinterpret_cast<ArenaHeader*>(memory_->data()); }

  std::unique_ptr<ArenaMemory> memory_;
  int rank_, nranks_;
  std::vector<RegionBlock*> region_blocks_;
  // Bump allocation: first inside the memory committed ahead, then behind it.
  size_t ahead_used_ = kDataOffset, ahead_end_ = kDataOffset;
  size_t used_end_ = kDataOffset;
  size_t committed_end_ = kDataOffset;  // of the data
  size_t directory_end_ = 0;            // of header and directory
};

// A peer's end. It only reads, and checks every number before use.
class ArenaView {
 public:
  // Checks the header; a kInternalError names the peer and the field.
  static Result<std::unique_ptr<ArenaView>> Create(const std::byte* data, size_t bytes, int peer,
                                                   int nranks);

  const std::byte* data() const { return data_; }
  // End offset of the committed data, at least kDataOffset.
  size_t committed() const {
    const uint64_t end = header()->committed.load(std::memory_order_acquire);
    return std::clamp<uint64_t>(end, kDataOffset, bytes_);
  }
  // Whether a slot may begin at this offset and have so many bytes.
  bool HasSlot(uint64_t offset, uint32_t bytes) const {
    const size_t end = committed();  // one load: the peer may change it
    return offset % 64 == 0 && offset >= kDataOffset && offset <= end && bytes <= end - offset;
  }
  // Number of announced entries, one load. While it is unchanged, another Find finds nothing new.
  uint32_t entries() const { return header()->entries.load(std::memory_order_seq_cst); }
  // The block of the peer's region table after this one, or the first block for nullptr; nullptr if
  // there is none yet. Fails if the block does not fit the arena.
  Result<const RegionBlock*> RegionsAfter(const RegionBlock* block) const;
  // The headers of a lane or, with consumer >= 0, its credits; nullptr until the peer has announced
  // them. Fails if the entry does not fit the arena or the given shape.
  Result<const std::byte*> Find(uint64_t key, int consumer, uint32_t slot_bytes, uint32_t depth);

 private:
  ArenaView(const std::byte* data, size_t bytes, int peer, int nranks)
      : data_(data), bytes_(bytes), peer_(peer), nranks_(nranks) {}
  const ArenaHeader* header() const { return reinterpret_cast<const ArenaHeader*>(data_); }
  Status Scan();
  Status Check(const DirectoryEntry& entry) const;

  const std::byte* data_;
  size_t bytes_;
  int peer_, nranks_;
  uint32_t scanned_ = 0;
  Status error_;  // of Scan; sticky
  // By a hash of key and consumer; Find compares the whole entry.
  std::unordered_multimap<uint64_t, DirectoryEntry> entries_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_ARENA_H_
