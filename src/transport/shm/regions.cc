// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/regions.h"

#include <algorithm>

#include "transport/shm/memfd.h"

namespace inccl::shm {

using mapped::RegionBoard;
using mapped::RegionEntry;

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
  Result<FileName> name = NameOf(region.fd);
  if (!name.ok()) return 0;
  refused_ = 0;
  Offered& oldest =
      *std::min_element(offers_.begin(), offers_.end(),
                        [](const Offered& a, const Offered& b) { return a.used < b.used; });
  oldest = {region.serial, uses_};
  RegionEntry& entry = (*board)->regions[id_of(oldest) - 1];
  entry.serial.store(0, std::memory_order_seq_cst);
  entry.bytes.store(region.bytes, std::memory_order_relaxed);
  entry.pid.store(name->pid, std::memory_order_relaxed);
  entry.fd.store(name->fd, std::memory_order_relaxed);
  entry.device.store(name->device, std::memory_order_relaxed);
  entry.inode.store(name->inode, std::memory_order_relaxed);
  entry.serial.store(region.serial, std::memory_order_seq_cst);
  (*board)->changes.fetch_add(1, std::memory_order_seq_cst);
  return id_of(oldest);
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

// A region that cannot be mapped stays unanswered: its owner does not use it towards this rank.
Status PeerRegions::Look(uint32_t index) {
  const RegionEntry& entry = board_->regions[index];
  Mapped& mapped = mapped_[index];
  const uint64_t serial = entry.serial.load(std::memory_order_seq_cst);
  if (serial == 0 || serial == mapped.serial) return Status::Ok();
  const uint64_t bytes = entry.bytes.load(std::memory_order_relaxed);
  const FileName name{.pid = entry.pid.load(std::memory_order_relaxed),
                      .fd = entry.fd.load(std::memory_order_relaxed),
                      .device = entry.device.load(std::memory_order_relaxed),
                      .inode = entry.inode.load(std::memory_order_relaxed)};
  // Changed meanwhile: `changes` will be different, too.
  if (entry.serial.load(std::memory_order_seq_cst) != serial || bytes == 0) return Status::Ok();
  Result<RegionBoard*> own_board = arena_->Board();
  if (!own_board.ok()) return Status::Ok();
  std::atomic<uint64_t>& answer = (*own_board)->answers[static_cast<size_t>(peer_)].mapped[index];
  answer.store(0, std::memory_order_seq_cst);
  mapped.memory.Reset();
  mapped.serial = serial;
  Result<UniqueFd> file = OpenByName(name);
  if (!file.ok()) return Status::Ok();
  Result<Mapping> memory = MapSealed(file->get(), bytes, /*writable=*/true);
  if (!memory.ok()) return Status::Ok();
  mapped.memory = *std::move(memory);
  answer.store(serial, std::memory_order_seq_cst);
  return Status::Ok();
}

bool PeerRegions::Reaches(uint32_t region) const {
  if (board_ == nullptr || region == 0) return false;
  const std::atomic<uint64_t>& answer =
      board_->answers[static_cast<size_t>(rank_)].mapped[region - 1];
  const uint64_t serial = own_->serial(region);
  return serial != 0 && answer.load(std::memory_order_acquire) == serial;
}

std::byte* PeerRegions::At(const RegionRef& place, size_t bytes) const {
  if (place.region == 0 || place.region > mapped::kRegions) return nullptr;
  const Mapping& memory = mapped_[place.region - 1].memory;
  if (place.offset > memory.bytes() || bytes > memory.bytes() - place.offset) return nullptr;
  return memory.data() == nullptr ? nullptr : memory.data() + place.offset;
}

}  // namespace inccl::shm
