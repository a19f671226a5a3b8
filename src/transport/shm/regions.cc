// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "memory/memfd.h"

namespace inccl::shm {

using mapped::RegionEntry;
using mapped::RegionKind;
using mapped::RegionTable;

namespace {

using HandleWords = std::array<uint64_t, std::extent_v<decltype(RegionEntry::handle)>>;
static_assert(sizeof(HandleWords) == Region::kHandleBytes);

}  // namespace

uint32_t OwnRegions::ExportRegion(const Region& region) {
  ++uses_;
  for (Exported& offered : exports_) {
    if (offered.generation != region.generation) continue;
    offered.used = uses_;
    if (region.writable && !offered.writable) return Post(region, &offered) ? IdOf(offered) : 0;
    if (!offered.unsent.empty() && Send(region.fd, &offered)) {
      if (Result<RegionTable*> table = arena_->Regions(); table.ok())
        (*table)->changes.fetch_add(1);
    }
    return IdOf(offered);
  }
  if (region.generation == refused_) return 0;
  Exported& oldest =
      *std::min_element(exports_.begin(), exports_.end(),
                        [](const Exported& a, const Exported& b) { return a.used < b.used; });
  refused_ = Post(region, &oldest) ? 0 : region.generation;
  return refused_ == 0 ? IdOf(oldest) : 0;
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
bool OwnRegions::Post(const Region& region, Exported* offered) {
  Result<RegionTable*> table = arena_->Regions();
  if (!table.ok()) return false;
  RegionKind kind = RegionKind::kDevice;
  struct stat file {};
  if (!region.on_device) {
    if (fstat(region.fd, &file) != 0) return false;
    kind = region.writable ? RegionKind::kWritable : RegionKind::kReadable;
  }
  *offered = {.generation = region.generation,
              .posted = ++posts_,
              .used = uses_,
              .writable = region.writable,
              .unsent = {}};
  RegionEntry& entry = (*table)->regions[IdOf(*offered) - 1];
  entry.generation.store(0, std::memory_order_seq_cst);
  if (!region.on_device) {
    for (const UniqueFd& inbox : inboxes_) offered->unsent.push_back(inbox.get());
    Send(region.fd, offered);
  }
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
  (*table)->changes.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

// The store precedes all later writes of the caller to its memory.
void OwnRegions::InvalidateRegion(uint32_t id) {
  Result<RegionTable*> table = arena_->Regions();
  if (!table.ok()) return;  // without a table nothing was exported
  (*table)->regions[id - 1].generation.store(0, std::memory_order_seq_cst);
  exports_[id - 1] = {};
}

Status PeerRegions::Update() {
  if (table_ == nullptr) {
    Result<const RegionTable*> table = view_->Regions();
    if (!table.ok()) return table.status();
    if (*table == nullptr) return Status::Ok();
    table_ = *table;
  }
  const uint32_t changes = table_->changes.load(std::memory_order_seq_cst);
  if (changes == changes_) return Status::Ok();
  for (uint32_t i = 0; i < mapped::kRegions; ++i) {
    if (Status status = Look(i); !status.ok()) return status;
  }
  changes_ = changes;
  return Status::Ok();
}

void PeerRegions::SetOpener(RegionImporter* opener) {
  for (size_t i = 0; i < mapped_.size(); ++i) {
    if (mapped_[i].file.data() != nullptr) continue;
    if (mapped_[i].opened.data != nullptr) {
      Result<RegionTable*> table = arena_->Regions();  // exists, since it holds the answer
      if (table.ok()) (*table)->answers[static_cast<size_t>(peer_)].mapped[i].store(0);
    }
    Forget(&mapped_[i]);
  }
  opener_ = opener;
  changes_ = 0;  // the new importer may open what the old one could not
}

void PeerRegions::Forget(Mapped* mapped) {
  if (mapped->opened.data != nullptr) opener_->Close(mapped->opened.data);
  const uint32_t users = mapped->users;  // lanes still drop their references when they end
  *mapped = {};
  mapped->users = users;
}

// Does not answer a region that it cannot import, so the owner sends this rank no references to it.
Status PeerRegions::Look(uint32_t index) {
  const RegionEntry& entry = table_->regions[index];
  Mapped& mapped = mapped_[index];
  const uint64_t generation = entry.generation.load(std::memory_order_seq_cst);
  if (generation == 0 || generation == mapped.generation) return Status::Ok();
  if (mapped.users > 0) {
    return InternalError(
        fmt::format("rank {}: peer rank {} replaced its region {}, to which {} slices that this "
                    "rank has not released refer",
                    rank_, peer_, index + 1, mapped.users));
  }
  Result<RegionTable*> own_table = arena_->Regions();
  if (!own_table.ok()) return Status::Ok();
  std::atomic<uint64_t>& answer = (*own_table)->answers[static_cast<size_t>(peer_)].mapped[index];
  answer.store(0, std::memory_order_seq_cst);
  Forget(&mapped);
  if (Reach(index, generation, &mapped)) answer.store(generation, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reach(uint32_t index, uint64_t generation, Mapped* mapped) {
  const RegionEntry& entry = table_->regions[index];
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const uint32_t kind = entry.kind.load(std::memory_order_relaxed);
  const uint64_t device = entry.device.load(std::memory_order_relaxed);
  const uint64_t inode = entry.inode.load(std::memory_order_relaxed);
  HandleWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = entry.handle[i].load(std::memory_order_relaxed);
  }
  // The entry changed meanwhile; then `changes` differs at the next Update, too.
  if (entry.generation.load(std::memory_order_seq_cst) != generation || bytes == 0) return false;
  mapped->generation = generation;
  if (kind == static_cast<uint32_t>(RegionKind::kDevice)) {
    Region::Handle handle;
    std::memcpy(handle.data(), words.data(), sizeof words);
    std::byte* const memory = opener_ == nullptr ? nullptr : opener_->Open(handle, bytes);
    if (memory != nullptr) mapped->opened = {memory, bytes};
    return memory != nullptr;
  }
  mapped->writable = kind == static_cast<uint32_t>(RegionKind::kWritable);
  if (inbox_ == nullptr ||
      (!mapped->writable && kind != static_cast<uint32_t>(RegionKind::kReadable))) {
    return false;
  }
  const UniqueFd sent =
      inbox_->Take({.rank = peer_, .region = index + 1, .generation = generation});
  if (!sent.valid()) {
    mapped->generation = 0;  // look again once the owner could send it
    return false;
  }
  // Compare with the peer's own table: another rank could have sent a file under the peer's name.
  struct stat file {};
  if (fstat(sent.get(), &file) != 0 || file.st_dev != device || file.st_ino != inode) return false;
  Result<Mapping> memory = MapSealed(sent.get(), bytes, mapped->writable);
  if (!memory.ok()) return false;
  mapped->file = *std::move(memory);
  return true;
}

bool PeerRegions::ReachableFrom(uint32_t region) const {
  if (table_ == nullptr || region == 0) return false;
  const std::atomic<uint64_t>& answer =
      table_->answers[static_cast<size_t>(rank_)].mapped[region - 1];
  const uint64_t generation = own_->generation(region);
  return generation != 0 && answer.load(std::memory_order_acquire) == generation;
}

bool PeerRegions::Counts(uint32_t region) const {
  return table_->regions[region - 1].generation.load(std::memory_order_seq_cst) ==
         mapped_[region - 1].generation;
}

bool PeerRegions::IsWritable(uint32_t region) const {
  if (region == 0 || region > mapped::kRegions) return false;
  const Mapped& mapped = mapped_[region - 1];
  return mapped.writable && mapped.file.data() != nullptr;
}

std::byte* PeerRegions::At(const RemoteAddress& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped::kRegions) return nullptr;
  const Span memory = mapped_[place.region - 1].memory();
  if (place.offset > memory.bytes || bytes > memory.bytes - place.offset) return nullptr;
  return memory.data == nullptr ? nullptr : memory.data + place.offset;
}

}  // namespace inccl::shm
