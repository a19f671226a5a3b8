// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "memory/memfd.h"

namespace inccl::shm {

using mapped::RegionBoard;
using mapped::RegionEntry;
using mapped::RegionKind;

namespace {

using HandleWords = std::array<uint64_t, std::extent_v<decltype(RegionEntry::handle)>>;
static_assert(sizeof(HandleWords) == Region::kHandleBytes);

}  // namespace

uint32_t OwnRegions::Offer(const Region& region) {
  ++uses_;
  for (Offered& offered : offers_) {
    if (offered.serial != region.serial) continue;
    offered.used = uses_;
    if (region.writable && !offered.writable) return Post(region, &offered) ? IdOf(offered) : 0;
    if (!offered.unsent.empty() && Send(region.fd, &offered)) {
      if (Result<RegionBoard*> board = arena_->Board(); board.ok()) (*board)->changes.fetch_add(1);
    }
    return IdOf(offered);
  }
  if (region.serial == refused_) return 0;
  Offered& oldest =
      *std::min_element(offers_.begin(), offers_.end(),
                        [](const Offered& a, const Offered& b) { return a.used < b.used; });
  refused_ = Post(region, &oldest) ? 0 : region.serial;
  return refused_ == 0 ? IdOf(oldest) : 0;
}

bool OwnRegions::Send(int file, Offered* offered) {
  const RegionLabel label = {rank_, IdOf(*offered), offered->posted};
  bool any = false;
  std::erase_if(offered->unsent, [&](int inbox) {
    const Sent sent = SendRegionFile(inbox, label, file);
    any = any || sent == Sent::kYes;
    return sent != Sent::kLater;
  });
  return any;
}

// The file goes before the entry, so that whoever sees the entry finds it.
bool OwnRegions::Post(const Region& region, Offered* offered) {
  Result<RegionBoard*> board = arena_->Board();
  if (!board.ok()) return false;
  RegionKind kind = RegionKind::kDevice;
  struct stat file {};
  if (!region.on_device) {
    if (fstat(region.fd, &file) != 0) return false;
    kind = region.writable ? RegionKind::kWritable : RegionKind::kReadable;
  }
  *offered = {.serial = region.serial,
              .posted = ++posts_,
              .used = uses_,
              .writable = region.writable,
              .unsent = {}};
  RegionEntry& entry = (*board)->regions[IdOf(*offered) - 1];
  entry.serial.store(0, std::memory_order_seq_cst);
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
  entry.serial.store(offered->posted, std::memory_order_seq_cst);
  (*board)->changes.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

// The store goes before whatever the caller does with its memory.
void OwnRegions::Withdraw(uint32_t id) {
  Result<RegionBoard*> board = arena_->Board();
  if (!board.ok()) return;  // nothing was offered
  (*board)->regions[id - 1].serial.store(0, std::memory_order_seq_cst);
  offers_[id - 1] = {};
}

Status PeerRegions::Update() {
  if (board_ == nullptr) {
    Result<const RegionBoard*> board = view_->Board();
    if (!board.ok()) return board.status();
    if (*board == nullptr) return Status::Ok();
    board_ = *board;
  }
  const uint32_t changes = board_->changes.load(std::memory_order_seq_cst);
  if (changes == changes_) return Status::Ok();
  for (uint32_t i = 0; i < mapped::kRegions; ++i) {
    if (Status status = Look(i); !status.ok()) return status;
  }
  changes_ = changes;
  return Status::Ok();
}

void PeerRegions::SetOpener(RegionOpener* opener) {
  for (size_t i = 0; i < mapped_.size(); ++i) {
    if (mapped_[i].file.data() != nullptr) continue;
    if (mapped_[i].opened.data != nullptr) {
      Result<RegionBoard*> board = arena_->Board();  // there is one: it has the answer
      if (board.ok()) (*board)->answers[static_cast<size_t>(peer_)].mapped[i].store(0);
    }
    Forget(&mapped_[i]);
  }
  opener_ = opener;
  changes_ = 0;  // what could not be opened before may be now
}

void PeerRegions::Forget(Mapped* mapped) {
  if (mapped->opened.data != nullptr) opener_->Close(mapped->opened.data);
  const uint32_t users = mapped->users;  // lanes of a transport that ends still drop theirs
  *mapped = {};
  mapped->users = users;
}

// A region that cannot be mapped stays unanswered: its owner does not use it towards this rank.
Status PeerRegions::Look(uint32_t index) {
  const RegionEntry& entry = board_->regions[index];
  Mapped& mapped = mapped_[index];
  const uint64_t serial = entry.serial.load(std::memory_order_seq_cst);
  if (serial == 0 || serial == mapped.serial) return Status::Ok();
  if (mapped.users > 0) {
    return InternalError(
        fmt::format("rank {}: peer rank {} replaced its region {}, to which {} slices that this "
                    "rank has not released refer",
                    rank_, peer_, index + 1, mapped.users));
  }
  Result<RegionBoard*> own_board = arena_->Board();
  if (!own_board.ok()) return Status::Ok();
  std::atomic<uint64_t>& answer = (*own_board)->answers[static_cast<size_t>(peer_)].mapped[index];
  answer.store(0, std::memory_order_seq_cst);
  Forget(&mapped);
  if (Reach(index, serial, &mapped)) answer.store(serial, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reach(uint32_t index, uint64_t serial, Mapped* mapped) {
  const RegionEntry& entry = board_->regions[index];
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const uint32_t kind = entry.kind.load(std::memory_order_relaxed);
  const uint64_t device = entry.device.load(std::memory_order_relaxed);
  const uint64_t inode = entry.inode.load(std::memory_order_relaxed);
  HandleWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = entry.handle[i].load(std::memory_order_relaxed);
  }
  // Changed meanwhile: `changes` will be different, too.
  if (entry.serial.load(std::memory_order_seq_cst) != serial || bytes == 0) return false;
  mapped->serial = serial;
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
  const UniqueFd sent = inbox_->Take({.rank = peer_, .region = index + 1, .serial = serial});
  if (!sent.valid()) {
    mapped->serial = 0;  // the owner sends it when there is room: then this rank looks again
    return false;
  }
  // The board is the peer's own: another rank could have put a descriptor under its name.
  struct stat file {};
  if (fstat(sent.get(), &file) != 0 || file.st_dev != device || file.st_ino != inode) return false;
  Result<Mapping> memory = MapSealed(sent.get(), bytes, mapped->writable);
  if (!memory.ok()) return false;
  mapped->file = *std::move(memory);
  return true;
}

bool PeerRegions::Reaches(uint32_t region) const {
  if (board_ == nullptr || region == 0) return false;
  const std::atomic<uint64_t>& answer =
      board_->answers[static_cast<size_t>(rank_)].mapped[region - 1];
  const uint64_t serial = own_->serial(region);
  return serial != 0 && answer.load(std::memory_order_acquire) == serial;
}

bool PeerRegions::Counts(uint32_t region) const {
  return board_->regions[region - 1].serial.load(std::memory_order_seq_cst) ==
         mapped_[region - 1].serial;
}

bool PeerRegions::IsWritable(uint32_t region) const {
  if (region == 0 || region > mapped::kRegions) return false;
  const Mapped& mapped = mapped_[region - 1];
  return mapped.writable && mapped.file.data() != nullptr;
}

std::byte* PeerRegions::At(const RegionRef& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped::kRegions) return nullptr;
  const Span memory = mapped_[place.region - 1].memory();
  if (place.offset > memory.bytes || bytes > memory.bytes - place.offset) return nullptr;
  return memory.data == nullptr ? nullptr : memory.data + place.offset;
}

}  // namespace inccl::shm
