// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/rng.h"

namespace inccl::mapped {
namespace {

uint64_t MapKey(uint64_t key, int consumer) {
  return Mix64(key ^ static_cast<uint64_t>(static_cast<int64_t>(consumer)));
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Create(std::unique_ptr<ArenaMemory> memory, int rank,
                                             int nranks) {
  const size_t bytes = memory->bytes();
  if (bytes < kDataOffset + kPage || bytes % kPage != 0) {
    return InvalidArgument(
        fmt::format("rank {}: arena of {} bytes: not a multiple of {} of at least {}", rank, bytes,
                    kPage, kDataOffset + kPage));
  }
  std::unique_ptr<Arena> arena(new Arena(std::move(memory), rank, nranks));
  if (Status status = arena->memory_->Commit(0, kDirectoryOffset); !status.ok()) return status;
  arena->directory_end_ = kDirectoryOffset;
  ArenaHeader* header = new (arena->memory_->data()) ArenaHeader{};
  header->version = kArenaVersion;
  header->rank = rank;
  header->nranks = nranks;
  header->bytes = bytes;
  header->committed.store(kDataOffset, std::memory_order_relaxed);
  header->entries.store(0, std::memory_order_relaxed);
  header->magic.store(kArenaMagic, std::memory_order_release);
  return arena;
}

uint32_t Arena::MaxSlotBytes(size_t bytes) {
  if (bytes < kDataOffset + 2 * kPage) return 0;
  const size_t most = bytes - kDataOffset - kPage;  // for the headers
  return static_cast<uint32_t>(most < (size_t{1} << 30) ? most : size_t{1} << 30);
}

void Arena::CommitAhead(size_t bytes) {
  if (directory_end_ == kDirectoryOffset && memory_->Commit(directory_end_, kPage).ok()) {
    directory_end_ += kPage;
  }
  const size_t end = std::min(kDataOffset + RoundUp(bytes, kPage), memory_->bytes());
  if (end <= committed_end_) return;
  if (!memory_->Commit(committed_end_, end - committed_end_).ok()) return;
  ahead_used_ = std::max(ahead_used_, used_end_);
  committed_end_ = ahead_end_ = end;
  header()->committed.store(committed_end_, std::memory_order_release);
}

Result<uint64_t> Arena::Allocate(size_t bytes, size_t alignment) {
  const size_t total = memory_->bytes();
  // Devices register memory in the pieces in which it was committed, and a copy must stay within
  // one piece.
  size_t* used = &ahead_used_;
  if (RoundUp(*used, alignment) + bytes > ahead_end_) {
    used = &used_end_;
    *used = std::max(*used, ahead_end_);
  }
  size_t begin = RoundUp(*used, alignment);
  if (begin < committed_end_ && bytes > committed_end_ - begin) begin = committed_end_;
  if (begin > total || bytes > total - begin) {
    return SystemError(fmt::format(
        "rank {}: a lane needs {} bytes of shared memory, {} of the arena's {} are left", rank_,
        bytes, begin > total ? 0 : total - begin, total));
  }
  const size_t end = begin + bytes;
  const size_t committed_end = RoundUp(end, kPage);
  if (committed_end > committed_end_) {
    Status status = memory_->Commit(committed_end_, committed_end - committed_end_);
    if (!status.ok()) {
      return Status(status.code(), fmt::format("rank {}: a lane needs {} bytes: {}", rank_, bytes,
                                               status.message()));
    }
    committed_end_ = committed_end;
    header()->committed.store(committed_end_, std::memory_order_release);
  }
  *used = end;
  return uint64_t{begin};
}

Result<RegionBlock*> Arena::Regions(uint32_t block) {
  while (region_blocks_.size() <= block) {
    region_blocks_.reserve(kRegionBlocks);  // so that a block is announced only if it is kept
    Result<uint64_t> offset = Allocate(RegionBlockBytes(nranks_), kPage);
    if (!offset.ok()) return offset.status();
    std::atomic<uint64_t>& link =
        region_blocks_.empty() ? header()->table : region_blocks_.back()->next;
    region_blocks_.push_back(reinterpret_cast<RegionBlock*>(At(*offset)));
    link.store(*offset, std::memory_order_release);
    region_blocks_.front()->changes.fetch_add(1, std::memory_order_seq_cst);
  }
  return region_blocks_[block];
}

Status Arena::Announce(const DirectoryEntry& entry) {
  const uint32_t count = header()->entries.load(std::memory_order_relaxed);
  if (count == kDirectoryEntries) {
    return SystemError(
        fmt::format("rank {}: more than {} lane ends in shared memory", rank_, kDirectoryEntries));
  }
  const size_t offset = kDirectoryOffset + count * sizeof(DirectoryEntry);
  if (offset + sizeof(DirectoryEntry) > directory_end_) {
    if (Status status = memory_->Commit(directory_end_, kPage); !status.ok()) return status;
    directory_end_ += kPage;
  }
  std::memcpy(At(offset), &entry, sizeof(entry));
  // Publishes the entry and the zeroed memory it describes. seq_cst: see wakeup.h.
  header()->entries.store(count + 1, std::memory_order_seq_cst);
  return Status::Ok();
}

Result<std::unique_ptr<ArenaView>> ArenaView::Create(const std::byte* data, size_t bytes, int peer,
                                                     int nranks) {
  const auto wrong = [peer](const char* field, auto found, auto expected) {
    return InternalError(fmt::format("shared memory of peer rank {}: {} is {}, expected {}", peer,
                                     field, found, expected));
  };
  if (bytes < kDataOffset + kPage) return wrong("size", bytes, kDataOffset + kPage);
  const auto* header = reinterpret_cast<const ArenaHeader*>(data);
  const uint64_t magic = header->magic.load(std::memory_order_acquire);
  if (magic != kArenaMagic) return wrong("magic", magic, kArenaMagic);
  if (header->version != kArenaVersion) return wrong("version", header->version, kArenaVersion);
  if (header->rank != peer) return wrong("rank", header->rank, peer);
  if (header->nranks != nranks) return wrong("number of ranks", header->nranks, nranks);
  if (header->bytes != bytes) return wrong("size", header->bytes, bytes);
  return std::unique_ptr<ArenaView>(new ArenaView(data, bytes, peer, nranks));
}

Result<const RegionBlock*> ArenaView::RegionsAfter(const RegionBlock* block) const {
  const std::atomic<uint64_t>& link = block == nullptr ? header()->table : block->next;
  const uint64_t offset = link.load(std::memory_order_acquire);
  if (offset == 0) return static_cast<const RegionBlock*>(nullptr);
  const uint64_t committed = header()->committed.load(std::memory_order_acquire);
  const uint64_t end = committed < bytes_ ? committed : bytes_;
  if (offset % kPage != 0 || offset < kDataOffset || offset > end ||
      RegionBlockBytes(nranks_) > end - offset) {
    return InternalError(
        fmt::format("shared memory of peer rank {}: its regions at {} of {}", peer_, offset, end));
  }
  return reinterpret_cast<const RegionBlock*>(data_ + offset);
}

Status ArenaView::Check(const DirectoryEntry& entry) const {
  const auto wrong = [&](const char* what, uint64_t value) {
    return InternalError(fmt::format("shared memory of peer rank {}: entry {}: {} {} is invalid",
                                     peer_, scanned_, what, value));
  };
  const auto kind = static_cast<EntryKind>(entry.kind);
  if (kind != EntryKind::kHeaders && kind != EntryKind::kCredit) return wrong("kind", entry.kind);
  if (entry.consumer != (kind == EntryKind::kCredit ? peer_ : -1)) {
    return wrong("consumer", static_cast<uint32_t>(entry.consumer));
  }
  if (entry.depth < 1 || entry.depth > UINT16_MAX) return wrong("depth", entry.depth);
  const size_t bytes =
      kind == EntryKind::kHeaders ? HeadersBytes(entry.depth) : CreditBytes(entry.depth);
  const uint64_t committed = header()->committed.load(std::memory_order_acquire);
  const uint64_t end = committed < bytes_ ? committed : bytes_;
  if (entry.offset % 64 != 0 || entry.offset < kDataOffset || entry.offset > end) {
    return wrong("offset", entry.offset);
  }
  if (bytes > end - entry.offset) return wrong("size", bytes);
  return Status::Ok();
}

Status ArenaView::Scan() {
  if (!error_.ok()) return error_;
  const uint32_t count = header()->entries.load(std::memory_order_seq_cst);
  if (count > kDirectoryEntries || count < scanned_) {
    error_ = InternalError(fmt::format(
        "shared memory of peer rank {}: {} directory entries after {}", peer_, count, scanned_));
    return error_;
  }
  while (scanned_ < count) {
    DirectoryEntry entry;  // a copy, so that the peer cannot change it after the check
    std::memcpy(&entry, data_ + kDirectoryOffset + scanned_ * sizeof(entry), sizeof(entry));
    if (error_ = Check(entry); !error_.ok()) return error_;
    entries_.emplace(MapKey(entry.key, entry.consumer), entry);
    ++scanned_;
  }
  return Status::Ok();
}

Result<const std::byte*> ArenaView::Find(uint64_t key, int consumer, uint32_t slot_bytes,
                                         uint32_t depth) {
  if (Status status = Scan(); !status.ok()) return status;
  const auto [first, last] = entries_.equal_range(MapKey(key, consumer));
  for (auto it = first; it != last; ++it) {
    const DirectoryEntry& entry = it->second;
    if (entry.key != key || entry.consumer != consumer) continue;
    if (entry.slot_bytes != slot_bytes || entry.depth != depth) {
      return InternalError(
          fmt::format("shared memory of peer rank {}: lane {:016x} is {} x {} bytes, expected {} x "
                      "{}",
                      peer_, key, entry.depth, entry.slot_bytes, depth, slot_bytes));
    }
    return data_ + entry.offset;
  }
  return static_cast<const std::byte*>(nullptr);
}

}  // namespace inccl::mapped
