// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "transport/lane_check.h"
#include "transport/mapped/lanes.h"

namespace inccl::mapped {

MappedSendLane::MappedSendLane(LaneSpec spec, SlotHeader* headers, Arena* arena,
                               const std::vector<Peer>& peers, FutexScope scope,
                               TransportCounters* counters)
    : spec_(std::move(spec)),
      key_(spec_.Key()),
      headers_(headers),
      arena_(arena),
      scope_(scope),
      counters_(counters),
      most_(spec_.depth),
      used_(spec_.depth) {
  for (const Peer& peer : peers) consumers_.push_back(Consumer{peer});
  free_.reserve(spec_.depth);
}

Status MappedSendLane::MakeSlots(uint32_t slots) {
  if (slots == 0) return Status::Ok();
  const size_t stride = SlotStride(spec_.slot_bytes);
  const Result<uint64_t> first = arena_->Allocate(stride * slots, SlotAlignment(stride));
  if (!first.ok()) return first.status();
  for (uint32_t i = slots; i-- > 0;) free_.push_back(*first + i * stride);
  made_ += slots;
  return Status::Ok();
}

Status MappedSendLane::Refresh(Consumer* consumer) {
  if (consumer->credit == nullptr) {
    const uint32_t entries = consumer->peer.view->entries();
    if (entries == consumer->looked) return Status::Ok();
    Result<const std::byte*> found =
        consumer->peer.view->Find(key_, consumer->peer.rank, spec_.slot_bytes, spec_.depth);
    if (!found.ok()) return found.status();
    consumer->looked = entries;
    if (*found == nullptr) return Status::Ok();
    consumer->credit = reinterpret_cast<const CreditBlock*>(*found);
  }
  const uint64_t released = consumer->credit->released.load(std::memory_order_seq_cst);
  if (released < consumer->released || released > ticket_) {
    return InternalError(
        fmt::format("rank {}: {}: peer rank {} has released {} slices, after {}, of {} published",
                    spec_.producer, Describe(spec_), consumer->peer.rank, released,
                    consumer->released, ticket_));
  }
  consumer->released = released;
  return Status::Ok();
}

Status MappedSendLane::CollectReleased() {
  uint64_t least = ticket_;
  for (Consumer& consumer : consumers_) {
    if (consumer.released < ticket_) {
      if (Status status = Refresh(&consumer); !status.ok()) return status;
    }
    least = std::min(least, consumer.released);
  }
  for (; released_ < least; ++released_) free_.push_back(used_[released_ % spec_.depth]);
  return Status::Ok();
}

Result<bool> MappedSendLane::TakeSlot(uint64_t* slot) {
  if (free_.empty()) {
    if (Status status = CollectReleased(); !status.ok()) return status;
  }
  if (free_.empty() && made_ < most_) {
    Status status = MakeSlots(1);
    // A step of a schedule fills up to half of a lane's slots before ranks wait for other lanes. So
    // with half of them the lane can wait for those that its consumers give back.
    if (!status.ok() && 2 * made_ < spec_.depth) return status;
    if (!status.ok()) most_ = made_;
  }
  if (free_.empty()) return false;
  *slot = free_.back();
  free_.pop_back();
  return true;
}

Result<Span> MappedSendLane::TryAcquire() {
  if (slot_ == 0) {
    Result<bool> taken = TakeSlot(&slot_);
    if (!taken.ok()) return taken.status();
    if (!*taken) return Span{};
  }
  return Span{arena_->At(slot_), spec_.slot_bytes};
}

Status MappedSendLane::Publish(const SliceHeader& header) {
  if (Status status = CheckPublish(spec_, slot_ != 0, header); !status.ok()) return status;
  SlotHeader* const slot_header = headers_ + index_;
  const bool in_slot = header.source.region == 0;
  slot_header->bytes.store(header.bytes, std::memory_order_relaxed);
  slot_header->slice.store(header.slice, std::memory_order_relaxed);
  slot_header->signature.store(header.signature, std::memory_order_relaxed);
  slot_header->source_region.store(header.source.region, std::memory_order_relaxed);
  slot_header->source_offset.store(in_slot ? slot_ : header.source.offset,
                                   std::memory_order_relaxed);
  slot_header->target_region.store(header.target.region, std::memory_order_relaxed);
  slot_header->target_offset.store(header.target.offset, std::memory_order_relaxed);
  slot_header->delivered.store(header.delivered, std::memory_order_relaxed);
  slot_header->seq.store(static_cast<uint32_t>(ticket_ + 1), std::memory_order_seq_cst);
  used_[index_] = slot_;
  slot_ = 0;
  ++ticket_;
  if (++index_ == spec_.depth) index_ = 0;
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  for (const Consumer& consumer : consumers_) {
    RingIfSleeping(consumer.peer.wakeup, scope_, consumer.peer.event_fd);
  }
  return Status::Ok();
}

Status MappedSendLane::PublishStamped(const SliceHeader& header, Time departure) {
  if (slot_ != 0) headers_[index_].time.store(departure, std::memory_order_relaxed);
  return Publish(header);
}

bool MappedSendLane::ReachableFrom(uint32_t region) const {
  return std::all_of(consumers_.begin(), consumers_.end(), [&](const Consumer& consumer) {
    return consumer.peer.regions != nullptr && consumer.peer.regions->ReachableFrom(region);
  });
}

Result<bool> MappedSendLane::Drained() {
  bool drained = true;
  for (Consumer& consumer : consumers_) {
    if (consumer.released == ticket_) continue;
    if (Status status = Refresh(&consumer); !status.ok()) return status;
    drained = drained && consumer.released == ticket_;
  }
  return drained;
}

void MappedSendLane::AppendHolders(bool everything, std::vector<int>* ranks) const {
  const uint64_t slots = everything ? 0 : most_;
  for (const Consumer& consumer : consumers_) {
    if (consumer.released + slots <= ticket_ && consumer.released != ticket_) {
      ranks->push_back(consumer.peer.rank);
    }
  }
}

Time MappedSendLane::CreditDeparture() const {
  if (ticket_ < spec_.depth) return 0;
  Time latest = 0;
  for (const Consumer& consumer : consumers_) {
    if (consumer.credit == nullptr) continue;
    // CollectReleased has seen the release of the slice that had this stamp, so the consumer does
    // not write the stamp now.
    latest =
        std::max<Time>(latest, consumer.credit->stamps[index_].load(std::memory_order_relaxed));
  }
  return latest;
}

}  // namespace inccl::mapped
