// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>

#include "memory/memfd.h"

namespace inccl::shm {

using mapped::kBlockRegions;
using mapped::RegionBlock;
using mapped::RegionEntry;
using mapped::RegionKind;

Status PeerRegions::Update() {
  if (blocks_.empty()) {
    if (Status status = FindBlocks(); !status.ok() || blocks_.empty()) return status;
  }
  const uint32_t changes = blocks_.front()->changes.load(std::memory_order_seq_cst);
  if (changes == changes_) return Status::Ok();
  if (Status status = FindBlocks(); !status.ok()) return status;
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    if (Status status = Look(i); !status.ok()) return status;
  }
  changes_ = changes;
  return Status::Ok();
}

Status PeerRegions::FindBlocks() {
  while (blocks_.size() < mapped::kRegionBlocks) {
    Result<const RegionBlock*> next =
        view_->RegionsAfter(blocks_.empty() ? nullptr : blocks_.back());
    if (!next.ok()) return next.status();
    if (*next == nullptr) break;
    blocks_.push_back(*next);
    mapped_.resize(blocks_.size() * kBlockRegions);
  }
  return Status::Ok();
}

std::atomic<uint64_t>* PeerRegions::Answer(uint32_t index) {
  Result<RegionBlock*> own = arena_->Regions(index / kBlockRegions);
  if (!own.ok()) return nullptr;
  return &(*own)->answers[static_cast<size_t>(peer_)].mapped[index % kBlockRegions];
}

void PeerRegions::SetOpener(RegionImporter* opener) {
  for (uint32_t i = 0; i < mapped_.size(); ++i) {
    if (mapped_[i].file.data() != nullptr) continue;
    if (mapped_[i].opened.data != nullptr) {
      if (std::atomic<uint64_t>* answer = Answer(i); answer != nullptr) answer->store(0);
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
  const RegionEntry& entry = Entry(index);
  Mapped& mapped = mapped_[index];
  const uint64_t generation = entry.generation.load(std::memory_order_seq_cst);
  if (generation == 0 || generation == mapped.generation) return Status::Ok();
  if (mapped.users > 0) {
    return InternalError(
        fmt::format("rank {}: peer rank {} replaced its region {}, to which {} slices that this "
                    "rank has not released refer",
                    rank_, peer_, index + 1, mapped.users));
  }
  std::atomic<uint64_t>* const answer = Answer(index);
  if (answer == nullptr) return Status::Ok();
  answer->store(0, std::memory_order_seq_cst);
  Forget(&mapped);
  if (Reach(index, generation, &mapped)) answer->store(generation, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reach(uint32_t index, uint64_t generation, Mapped* mapped) {
  const RegionEntry& entry = Entry(index);
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
  if (region == 0 || region > mapped_.size()) return false;
  const uint32_t index = region - 1;
  const std::atomic<uint64_t>& answer = blocks_[index / kBlockRegions]
                                            ->answers[static_cast<size_t>(rank_)]
                                            .mapped[index % kBlockRegions];
  const uint64_t generation = own_->generation(region);
  return generation != 0 && answer.load(std::memory_order_acquire) == generation;
}

bool PeerRegions::Counts(uint32_t region) const {
  return Entry(region - 1).generation.load(std::memory_order_seq_cst) ==
         mapped_[region - 1].generation;
}

bool PeerRegions::IsWritable(uint32_t region) const {
  if (region == 0 || region > mapped_.size()) return false;
  const Mapped& mapped = mapped_[region - 1];
  return mapped.writable && mapped.file.data() != nullptr;
}

std::byte* PeerRegions::At(const RemoteAddress& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped_.size()) return nullptr;
  const Span memory = mapped_[place.region - 1].memory();
  if (place.offset > memory.bytes || bytes > memory.bytes - place.offset) return nullptr;
  return memory.data == nullptr ? nullptr : memory.data + place.offset;
}

}  // namespace inccl::shm
