// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "transport/shm/memfd.h"

namespace inccl::shm {

using mapped::RegionBoard;
using mapped::RegionEntry;

namespace {

using HandleWords = std::array<uint64_t, std::extent_v<decltype(RegionEntry::handle)>>;
static_assert(sizeof(HandleWords) == Region::kHandleBytes);

}  // namespace

uint32_t OwnRegions::Offer(const Region& region) {
  const auto id_of = [&](const Offered& offered) {
    return static_cast<uint32_t>(&offered - offers_.data()) + 1;
  };
  ++uses_;
  for (Offered& offered : offers_) {
    if (offered.serial != region.serial) continue;
    offered.used = uses_;
    return id_of(offered);
  }
  if (region.serial == refused_) return 0;
  refused_ = region.serial;
  Result<RegionBoard*> board = arena_->Board();
  if (!board.ok()) return 0;
  FileName name{.pid = -1, .fd = -1};
  if (!region.on_device) {
    Result<FileName> file = NameOf(region.fd);
    if (!file.ok()) return 0;
    name = *file;
  }
  refused_ = 0;
  Offered& oldest =
      *std::min_element(offers_.begin(), offers_.end(),
                        [](const Offered& a, const Offered& b) { return a.used < b.used; });
  oldest = {region.serial, uses_};
  RegionEntry& entry = (*board)->regions[id_of(oldest) - 1];
  entry.serial.store(0, std::memory_order_seq_cst);
  entry.bytes.store(region.bytes, std::memory_order_relaxed);
  entry.pid.store(name.pid, std::memory_order_relaxed);
  entry.fd.store(name.fd, std::memory_order_relaxed);
  entry.device.store(name.device, std::memory_order_relaxed);
  entry.inode.store(name.inode, std::memory_order_relaxed);
  HandleWords words;
  std::memcpy(words.data(), region.handle.data(), sizeof words);
  for (size_t i = 0; i < words.size(); ++i) {
    entry.handle[i].store(words[i], std::memory_order_relaxed);
  }
  entry.serial.store(region.serial, std::memory_order_seq_cst);
  (*board)->changes.fetch_add(1, std::memory_order_seq_cst);
  return id_of(oldest);
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
  if (Reach(entry, serial, &mapped)) answer.store(serial, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reach(const RegionEntry& entry, uint64_t serial, Mapped* mapped) {
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const FileName name{.pid = entry.pid.load(std::memory_order_relaxed),
                      .fd = entry.fd.load(std::memory_order_relaxed),
                      .device = entry.device.load(std::memory_order_relaxed),
                      .inode = entry.inode.load(std::memory_order_relaxed)};
  HandleWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = entry.handle[i].load(std::memory_order_relaxed);
  }
  // Changed meanwhile: `changes` will be different, too.
  if (entry.serial.load(std::memory_order_seq_cst) != serial || bytes == 0) return false;
  mapped->serial = serial;
  if (name.fd < 0) {
    Region::Handle handle;
    std::memcpy(handle.data(), words.data(), sizeof words);
    std::byte* const memory = opener_ == nullptr ? nullptr : opener_->Open(handle, bytes);
    if (memory != nullptr) mapped->opened = {memory, bytes};
    return memory != nullptr;
  }
  Result<UniqueFd> file = OpenByName(name);
  if (!file.ok()) return false;
  Result<Mapping> memory = MapSealed(file->get(), bytes, /*writable=*/true);
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

bool PeerRegions::IsOfHost(uint32_t region) const {
  return region > mapped::kRegions || region == 0 || mapped_[region - 1].opened.data == nullptr;
}

std::byte* PeerRegions::At(const RegionRef& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped::kRegions) return nullptr;
  const Span memory = mapped_[place.region - 1].memory();
  if (place.offset > memory.bytes || bytes > memory.bytes - place.offset) return nullptr;
  return memory.data == nullptr ? nullptr : memory.data + place.offset;
}

}  // namespace inccl::shm
