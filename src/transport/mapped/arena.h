// SPDX-License-Identifier: Apache-2.0
//
// The two ends of an arena (layout.h): its owner allocates and announces, its peers look things up.
#ifndef INCCL_TRANSPORT_MAPPED_ARENA_H_
#define INCCL_TRANSPORT_MAPPED_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/status.h"
#include "transport/mapped/layout.h"

namespace inccl::mapped {

// The memory of an arena, reserved in full and given pages as it is used.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // Backs [offset, offset + bytes), both multiples of kPage, with zeroed memory. kSystemError names
  // what is needed and the limit met.
  virtual Status Commit(size_t offset, size_t bytes) = 0;
};

// The owner's end. One thread at a time. Nothing is ever given back: lanes live as long as their
// transport.
class Arena {
 public:
  // Writes the header. `memory` is at least kDataOffset + kPage bytes.
  static Result<std::unique_ptr<Arena>> Create(std::unique_ptr<ArenaMemory> memory, int rank,
                                               int nranks);

  // Commits `bytes` of data, and a page of the directory, ahead of use. Where memory is missing
  // Allocate and Announce try again, and say so.
  void CommitAhead(size_t bytes);
  // Zeroed memory; offset from the start. `alignment` is a power of two up to kPage.
  Result<uint64_t> Allocate(size_t bytes, size_t alignment);
  // The table of regions, which comes with its first use; an error: no memory.
  Result<RegionTable*> Regions();
  // Makes it visible to peers.
  Status Announce(const DirectoryEntry& entry);

  std::byte* At(uint64_t offset) const { return memory_->data() + offset; }
  // For data, all in all.
  uint64_t data_bytes() const { return memory_->bytes() - kDataOffset; }
  // Where its data end that have memory behind them.
  size_t committed() const { return committed_end_; }
  uint64_t memory_bytes() const { return committed_end_ - kDataOffset + directory_end_; }
  // The largest slot that fits an empty arena of `bytes`.
  static uint32_t MaxSlotBytes(size_t bytes);

 private:
  Arena(std::unique_ptr<ArenaMemory> memory, int rank, int nranks)
      : memory_(std::move(memory)), rank_(rank), nranks_(nranks) {}
  ArenaHeader* header() const { return reinterpret_cast<ArenaHeader*>(memory_->data()); }

  std::unique_ptr<ArenaMemory> memory_;
  int rank_, nranks_;
  RegionTable* table_ = nullptr;
  // Bump allocation, in what was committed ahead as far as that goes, and behind it.
  size_t ahead_used_ = kDataOffset, ahead_end_ = kDataOffset;
  size_t used_end_ = kDataOffset;
  size_t committed_end_ = kDataOffset;  // of the data
  size_t directory_end_ = 0;            // of header and directory
};

// A peer's end: reads only. Every number found is checked before it is used.
class ArenaView {
 public:
  // Checks the header: kInternalError naming the peer and the field.
  static Result<std::unique_ptr<ArenaView>> Create(const std::byte* data, size_t bytes, int peer,
                                                   int nranks);

  // The end of the data that have memory behind them: at least kDataOffset.
  const std::byte* data() const { return data_; }
  size_t committed() const {
    const uint64_t end = header()->committed.load(std::memory_order_acquire);
    return std::clamp<uint64_t>(end, kDataOffset, bytes_);
  }
  // Entries announced so far, to avoid a Find that cannot find more than the one before. One load.
  uint32_t entries() const { return header()->entries.load(std::memory_order_seq_cst); }
  // The peer's table of regions; nullptr: none (yet). An error: it does not fit the arena.
  Result<const RegionTable*> Regions() const;
  // The slots or (consumer >= 0) the credits of a lane; nullptr as long as the peer has announced
  // none. An error: the entry does not fit the arena or the given shape.
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
  Status error_;  // of Scan; stays
  // Mixed from key and consumer; the entry is compared in full.
  std::unordered_multimap<uint64_t, DirectoryEntry> entries_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_ARENA_H_
