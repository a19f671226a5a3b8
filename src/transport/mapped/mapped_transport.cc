// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped/mapped_transport.h"

#include <algorithm>

#include "transport/transport.h"

namespace inccl::mapped {

MappedTransport::MappedTransport(const char* name, int rank, int nranks,
                                 std::unique_ptr<Arena> arena, WakeupArea* wakeup, FutexScope scope,
                                 uint32_t max_slot_bytes, uint32_t slots_at_opening)
    : name_(name),
      rank_(rank),
      nranks_(nranks),
      max_slot_bytes_(max_slot_bytes),
      slots_at_opening_(slots_at_opening),
      arena_(std::move(arena)),
      scope_(scope),
      wakeup_event_(wakeup, scope),
      views_(static_cast<size_t>(nranks)),
      wakeups_(static_cast<size_t>(nranks)),
      event_fds_(static_cast<size_t>(nranks), -1),
      regions_(static_cast<size_t>(nranks)) {}

void MappedTransport::SetPeer(int peer, std::unique_ptr<ArenaView> view, WakeupArea* wakeup,
                              SharedRegions* regions, int event_fd) {
  views_[static_cast<size_t>(peer)] = std::move(view);
  wakeups_[static_cast<size_t>(peer)] = wakeup;
  regions_[static_cast<size_t>(peer)] = regions;
  event_fds_[static_cast<size_t>(peer)] = event_fd;
}

Result<Peer> MappedTransport::FindPeer(const LaneSpec& spec, int peer) const {
  if (!HasPeer(peer)) return NotAttached(rank_, spec, peer);
  const auto index = static_cast<size_t>(peer);
  return Peer{peer, event_fds_[index], views_[index].get(), wakeups_[index], regions_[index]};
}

Result<std::unique_ptr<SendLane>> MappedTransport::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, nranks_, *this);
  if (!status.ok()) return status;
  std::vector<Peer> peers;
  for (const int consumer : spec.consumers) {
    Result<Peer> peer = FindPeer(spec, consumer);
    if (!peer.ok()) return peer.status();
    peers.push_back(*peer);
  }
  if (opened_send_.contains(spec.Key())) return OpenedTwice(rank_, spec, LaneSide::kSend);
  Result<uint64_t> offset = arena_->Allocate(HeadersBytes(spec.depth), 64);
  if (!offset.ok()) return offset.status();
  auto lane =
      std::make_unique<MappedSendLane>(spec, reinterpret_cast<SlotHeader*>(arena_->At(*offset)),
                                       arena_.get(), peers, scope_, &counters_);
  status = lane->MakeSlots(std::min<uint32_t>(slots_at_opening_, spec.depth));
  if (!status.ok()) return status;
  status = arena_->Announce({.key = spec.Key(),
                             .kind = static_cast<uint32_t>(EntryKind::kHeaders),
                             .consumer = -1,
                             .offset = *offset,
                             .slot_bytes = spec.slot_bytes,
                             .depth = spec.depth,
                             .reserved = {}});
  if (!status.ok()) return status;
  opened_send_.insert(spec.Key());
  return std::unique_ptr<SendLane>(std::move(lane));
}

Result<std::unique_ptr<RecvLane>> MappedTransport::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, nranks_, *this);
  if (!status.ok()) return status;
  Result<Peer> producer = FindPeer(spec, spec.producer);
  if (!producer.ok()) return producer.status();
  if (opened_recv_.contains(spec.Key())) return OpenedTwice(rank_, spec, LaneSide::kRecv);
  Result<uint64_t> offset = arena_->Allocate(CreditBytes(spec.depth), 64);
  if (!offset.ok()) return offset.status();
  status = arena_->Announce({.key = spec.Key(),
                             .kind = static_cast<uint32_t>(EntryKind::kCredit),
                             .consumer = rank_,
                             .offset = *offset,
                             .slot_bytes = spec.slot_bytes,
                             .depth = spec.depth,
                             .reserved = {}});
  if (!status.ok()) return status;
  opened_recv_.insert(spec.Key());
  auto* credit = reinterpret_cast<CreditBlock*>(arena_->At(*offset));
  return std::unique_ptr<RecvLane>(new MappedRecvLane(spec, credit, *producer, scope_, &counters_));
}

void MappedTransport::AppendSlotMemory(std::vector<Span>* spans) const {
  const auto append = [&](std::byte* arena, size_t committed) {
    if (committed > kDataOffset) spans->push_back({arena + kDataOffset, committed - kDataOffset});
  };
  append(arena_->At(0), arena_->committed());
  for (const std::unique_ptr<ArenaView>& view : views_) {
    if (view != nullptr) append(const_cast<std::byte*>(view->data()), view->committed());
  }
}

}  // namespace inccl::mapped
