// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "transport/lane_check.h"
#include "transport/mapped/lanes.h"

namespace inccl::mapped {

MappedSendLane::MappedSendLane(LaneSpec spec, std::byte* slots, const std::vector<Peer>& peers,
                               FutexScope scope, TransportCounters* counters)
    : spec_(std::move(spec)),
      key_(spec_.Key()),
      slots_(slots),
      stride_(SlotStride(spec_.slot_bytes)),
      scope_(scope),
      counters_(counters),
      free_until_(spec_.depth) {
  for (const Peer& peer : peers) consumers_.push_back(Consumer{peer});
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

Result<bool> MappedSendLane::HasCredit() {
  if (ticket_ < free_until_) return true;
  uint64_t least = ticket_;
  for (Consumer& consumer : consumers_) {
    if (consumer.released < ticket_) {
      if (Status status = Refresh(&consumer); !status.ok()) return status;
    }
    least = std::min(least, consumer.released);
  }
  free_until_ = least + spec_.depth;
  return ticket_ < free_until_;
}

Result<Span> MappedSendLane::TryAcquire() {
  if (!acquired_) {
    Result<bool> credit = HasCredit();
    if (!credit.ok()) return credit.status();
    if (!*credit) return Span{};
    acquired_ = true;
  }
  return Span{slot() + sizeof(SlotHeader), spec_.slot_bytes};
}

Status MappedSendLane::Publish(const SliceHeader& header) {
  if (Status status = CheckPublish(spec_, acquired_, header); !status.ok()) return status;
  auto* slot_header = reinterpret_cast<SlotHeader*>(slot());
  slot_header->bytes.store(header.bytes, std::memory_order_relaxed);
  slot_header->slice.store(header.slice, std::memory_order_relaxed);
  slot_header->signature.store(header.signature, std::memory_order_relaxed);
  slot_header->source_region.store(header.source.region, std::memory_order_relaxed);
  slot_header->source_offset.store(header.source.offset, std::memory_order_relaxed);
  slot_header->target_region.store(header.target.region, std::memory_order_relaxed);
  slot_header->target_offset.store(header.target.offset, std::memory_order_relaxed);
  slot_header->delivered.store(header.delivered, std::memory_order_relaxed);
  slot_header->seq.store(static_cast<uint32_t>(ticket_ + 1), std::memory_order_seq_cst);
  acquired_ = false;
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
  if (acquired_) {
    reinterpret_cast<SlotHeader*>(slot())->time.store(departure, std::memory_order_relaxed);
  }
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
  const uint64_t slots = everything ? 0 : spec_.depth;
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
    // HasCredit has seen the release of this slot, so the consumer does not write the stamp now.
    latest =
        std::max<Time>(latest, consumer.credit->stamps[index_].load(std::memory_order_relaxed));
  }
  return latest;
}

}  // namespace inccl::mapped
