// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "memory/host_allocator.h"
#include "transport/shm/regions.h"

namespace inccl::shm {

using mapped::kBlockRegions;
using mapped::RegionBlock;
using mapped::RegionEntry;
using mapped::RegionKind;

namespace {

constexpr uintptr_t kPage = 4096;

// The whole pages of a buffer in host memory: the bytes before the first one, and their size.
struct WholePages {
  size_t head = 0, bytes = 0;
};
WholePages PagesOf(const void* data, size_t bytes) {
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(data) % kPage;
  const size_t head = beyond == 0 ? 0 : kPage - beyond;
  return {head, bytes < head ? 0 : (bytes - head) / kPage * kPage};
}

const Status& NoWholePage() {
  thread_local const Status status =
      InvalidArgument("a buffer without a whole page: peers access whole pages only");
  return status;
}

Status Full() {
  return SystemError(
      fmt::format("{} regions are registered, the most that a rank exports; ccl_comm_deregister "
                  "makes room",
                  OwnRegions::kMostKept));
}

const Status& Refused() {
  thread_local const Status status = SystemError("the export of this memory has failed before");
  return status;
}

}  // namespace

Status OwnRegions::CanRegister(const void* data, size_t bytes, bool on_device) {
  if (!FindRegion(data, bytes, on_device).ok()) return WhyNoRegion(data, bytes, on_device);
  return on_device || PagesOf(data, bytes).bytes > 0 ? Status::Ok() : NoWholePage();
}

Result<MemoryHandle> OwnRegions::Register(const void* data, size_t bytes, const Registration& how) {
  Result<Region> region = FindRegion(data, bytes, how.on_device);
  if (!region.ok()) return region.status();
  WholePages pages{.head = 0, .bytes = bytes};
  if (!how.on_device) {
    pages = PagesOf(data, bytes);
    if (pages.bytes == 0) return NoWholePage();
    region->writable = how.access == Access::kReadWrite;
  }
  const Result<uint32_t> id = Export(*region, how.keep);
  if (!id.ok()) return id.status();
  const std::byte* const begin = static_cast<const std::byte*>(data) + pages.head;
  return MemoryHandle{.region = *id,
                      .on_device = how.on_device,
                      .writable = region->writable,
                      .offset = static_cast<uint64_t>(begin - region->data),
                      .begin = begin,
                      .end = begin + pages.bytes,
                      .memory = region->generation};
}

Result<uint32_t> OwnRegions::Export(const Region& region, bool keep) {
  ++uses_;
  if (const auto known = by_generation_.find(region.generation); known != by_generation_.end()) {
    Exported& exported = exports_[known->second];
    exported.used = uses_;
    if (region.writable && !exported.writable) {
      if (Status status = Post(region, &exported); !status.ok()) return status;
    } else if (!exported.unsent.empty() && Send(region.fd, &exported)) {
      if (Result<RegionBlock*> first = arena_->Regions(0); first.ok()) {
        (*first)->changes.fetch_add(1);
      }
    }
    if (keep && exported.keepers == 0 && !HasRoomToKeep()) return Full();
    if (keep) Keep(&exported);
    return IdOf(exported);
  }
  if (region.generation == refused_) return Refused();
  if (keep && !HasRoomToKeep()) return Full();
  Exported& exported = exports_[FindPlace(keep)];
  const uint64_t replaced = exported.generation;
  by_generation_.emplace(region.generation, IdOf(exported) - 1);
  const Status status = CatchOutOfMemory([&] { return Post(region, &exported); });
  if (!status.ok()) {
    by_generation_.erase(region.generation);
    refused_ = region.generation;
    return status;
  }
  refused_ = 0;
  if (replaced == 0) ++found_;
  if (replaced != 0) by_generation_.erase(replaced);
  if (keep) Keep(&exported);
  return IdOf(exported);
}

// A kept region needs no place of those that calls find, so it replaces one of these only if the
// table is full.
uint32_t OwnRegions::FindPlace(bool keep) {
  if (keep || found_ < kMostFound) {
    const auto free = std::find_if(exports_.begin(), exports_.end(),
                                   [](const Exported& each) { return each.generation == 0; });
    if (free != exports_.end()) return IdOf(*free) - 1;
    if (exports_.size() < mapped::kRegions) return IdOf(exports_.emplace_back()) - 1;
  }
  // There is one: found_ has reached its limit, or the table is full and kept_ has not reached its.
  const Exported* oldest = nullptr;
  for (const Exported& each : exports_) {
    if (each.generation == 0 || each.keepers > 0) continue;
    if (oldest == nullptr || each.used < oldest->used) oldest = &each;
  }
  return IdOf(*oldest) - 1;
}

bool OwnRegions::HasRoomToKeep() {
  if (kept_ < kMostKept) return true;
  for (Exported& each : exports_) {
    if (each.keepers == 0) continue;
    const Result<Region> region = FindRegion(each.data, 1, each.on_device);
    if (region.ok() && region->generation == each.generation) continue;
    each.keepers = 0;
    --kept_;
    ++found_;
  }
  return kept_ < kMostKept;
}

void OwnRegions::Keep(Exported* exported) {
  if (exported->keepers++ > 0) return;
  --found_;
  ++kept_;
}

void OwnRegions::Deregister(const MemoryHandle& memory) {
  const auto known = by_generation_.find(memory.memory);
  if (known == by_generation_.end()) return;  // revoked, or freed and replaced
  Exported& exported = exports_[known->second];
  if (exported.keepers == 0 || --exported.keepers > 0) return;
  --kept_;
  ++found_;
}

bool OwnRegions::Send(int file, Exported* offered) {
  const RegionLabel label = {rank_, IdOf(*offered), offered->posted};
  bool any = false;
  std::erase_if(offered->unsent, [&](int inbox) {
    const Sent sent = SendRegionFile(inbox, label, file);
    any = any || sent == Sent::kYes;
    return sent != Sent::kLater;
  });
  return any;
}

// Sends the file before it posts the entry, so that a peer that sees the entry finds the file.
Status OwnRegions::Post(const Region& region, Exported* offered) {
  const uint32_t index = IdOf(*offered) - 1;
  Result<RegionBlock*> first = arena_->Regions(0);
  Result<RegionBlock*> block = arena_->Regions(index / kBlockRegions);
  if (!block.ok()) return block.status();
  // Nothing allocates memory after the first change.
  std::vector<int> inboxes;
  RegionKind kind = RegionKind::kDevice;
  struct stat file {};
  if (!region.on_device) {
    if (fstat(region.fd, &file) != 0) return SystemErrorErrno("fstat of memory to export", errno);
    kind = region.writable ? RegionKind::kWritable : RegionKind::kReadable;
    for (const UniqueFd& inbox : inboxes_) inboxes.push_back(inbox.get());
  }
  *offered = {.generation = region.generation,
              .posted = ++posts_,
              .used = uses_,
              .keepers = offered->keepers,
              .writable = region.writable,
              .on_device = region.on_device,
              .data = region.data,
              .unsent = std::move(inboxes)};
  RegionEntry& entry = (*block)->regions[index % kBlockRegions];
  entry.generation.store(0, std::memory_order_seq_cst);
  if (!region.on_device) Send(region.fd, offered);
  entry.bytes.store(region.bytes, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  entry.device.store(file.st_dev, std::memory_order_relaxed);
  entry.inode.store(file.st_ino, std::memory_order_relaxed);
  HandleWords words;
  std::memcpy(words.data(), region.handle.data(), sizeof words);
  for (size_t i = 0; i < words.size(); ++i) {
    entry.handle[i].store(words[i], std::memory_order_relaxed);
  }
  entry.generation.store(offered->posted, std::memory_order_seq_cst);
  (*first)->changes.fetch_add(1, std::memory_order_seq_cst);
  return Status::Ok();
}

Status OwnRegions::RevokeAccess(const MemoryHandle& memory) {
  if (memory.region == 0) return Status::Ok();
  if (!memory.on_device) {
    return HostAllocator::Instance().RevokeAccess(
        memory.begin, memory.end,
        memory.writable ? HostAllocator::Contents::kLost : HostAllocator::Contents::kKept);
  }
  Invalidate(memory.memory);
  return Status::Ok();
}

// Peers may still read the region, but not release slices in it. The store precedes all later
// writes of the caller to its memory.
void OwnRegions::Invalidate(uint64_t generation) {
  const auto known = by_generation_.find(generation);
  if (known == by_generation_.end()) return;
  const uint32_t index = known->second;
  Result<RegionBlock*> block = arena_->Regions(index / kBlockRegions);  // exists
  if (!block.ok()) return;
  (*block)->regions[index % kBlockRegions].generation.store(0, std::memory_order_seq_cst);
  --(exports_[index].keepers > 0 ? kept_ : found_);
  exports_[index] = {};
  by_generation_.erase(known);
}

}  // namespace inccl::shm
