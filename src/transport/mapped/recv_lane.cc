// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "transport/lane_check.h"
#include "transport/mapped/lanes.h"

namespace inccl::mapped {

MappedRecvLane::MappedRecvLane(LaneSpec spec, CreditBlock* credit, const Peer& producer,
                               FutexScope scope, TransportCounters* counters)
    : spec_(std::move(spec)),
      key_(spec_.Key()),
      credit_(credit),
      producer_(producer),
      scope_(scope),
      counters_(counters) {}

Result<bool> MappedRecvLane::Wire() {
  if (headers_ != nullptr) return true;
  const uint32_t entries = producer_.view->entries();
  if (entries == looked_) return false;
  Result<const std::byte*> found = producer_.view->Find(key_, -1, spec_.slot_bytes, spec_.depth);
  if (!found.ok()) return found.status();
  looked_ = entries;
  headers_ = reinterpret_cast<const SlotHeader*>(*found);
  return headers_ != nullptr;
}

Result<bool> MappedRecvLane::ReadHeader(uint64_t ticket, uint32_t index, SliceHeader* header,
                                        uint64_t* slot) const {
  const SlotHeader& theirs = headers_[index];
  const auto expected = static_cast<uint32_t>(ticket + 1);
  const uint32_t seq = theirs.seq.load(std::memory_order_seq_cst);
  if (seq != expected) {
    const uint32_t before = ticket < spec_.depth ? 0 : expected - spec_.depth;
    if (seq == before) return false;
    return InternalError(
        fmt::format("{}: peer rank {} put number {} into a header, expected {} after {}",
                    Describe(spec_), producer_.rank, seq, expected, before));
  }
  header->bytes = theirs.bytes.load(std::memory_order_relaxed);
  header->slice = theirs.slice.load(std::memory_order_relaxed);
  header->signature = theirs.signature.load(std::memory_order_relaxed);
  header->source = {theirs.source_region.load(std::memory_order_relaxed),
                    theirs.source_offset.load(std::memory_order_relaxed)};
  if (header->source.region == 0) *slot = std::exchange(header->source.offset, 0);
  header->target = {theirs.target_region.load(std::memory_order_relaxed),
                    theirs.target_offset.load(std::memory_order_relaxed)};
  header->delivered = theirs.delivered.load(std::memory_order_relaxed);
  if (header->bytes > spec_.slot_bytes) {
    return InternalError(fmt::format("{}: peer rank {} sent a slice of {} bytes", Describe(spec_),
                                     producer_.rank, header->bytes));
  }
  return true;
}

Status MappedRecvLane::Locate(uint64_t slot, Incoming* incoming) const {
  const SliceHeader& header = incoming->header;
  incoming->target = nullptr;
  if (header.source.region == 0) {
    if (!producer_.view->HasSlot(slot, header.bytes)) {
      return InternalError(
          fmt::format("{}: peer rank {} has a slice of {} bytes at {}, which is not in "
                      "its shared memory",
                      Describe(spec_), producer_.rank, header.bytes, slot));
    }
    incoming->payload = producer_.view->data() + slot;
  }
  if ((header.source.region | header.target.region) == 0) return Status::Ok();
  if (spec_.lane_class != LaneClass::kData) {
    return InternalError(fmt::format("{}: peer rank {} names a registered buffer on this lane",
                                     Describe(spec_), producer_.rank));
  }
  const auto find = [&](const RemoteAddress& place) {
    return producer_.regions == nullptr ? nullptr : producer_.regions->At(place, header.bytes);
  };
  const auto unknown = [&](const RemoteAddress& place) {
    return InternalError(
        fmt::format("{}: peer rank {} names {} bytes at {} of its region {}, which is not mapped{}",
                    Describe(spec_), producer_.rank, header.bytes, place.offset, place.region,
                    &place == &header.target ? " to be written" : ""));
  };
  if (header.source.region != 0) incoming->payload = find(header.source);
  if (incoming->payload == nullptr) return unknown(header.source);
  if (header.target.region != 0) {
    if (producer_.regions != nullptr && !producer_.regions->IsWritable(header.target.region)) {
      return unknown(header.target);
    }
    incoming->target = find(header.target);
    if (incoming->target == nullptr) return unknown(header.target);
  }
  return Status::Ok();
}

void MappedRecvLane::HoldRegions() {
  for (const RemoteAddress& place : {incoming_.header.source, incoming_.header.target}) {
    if (place.region != 0) producer_.regions->Hold(place.region);
  }
}

void MappedRecvLane::DropRegions() {
  if (!peeked_) return;
  for (const RemoteAddress& place : {incoming_.header.source, incoming_.header.target}) {
    if (place.region != 0) producer_.regions->Drop(place.region);
  }
}

Result<bool> MappedRecvLane::TryPeek(Incoming* incoming) {
  if (!peeked_) {
    if (Result<bool> wired = Wire(); !wired.ok() || !*wired) return wired;
    uint64_t slot = 0;
    Result<bool> there = ReadHeader(ticket_, index_, &incoming_.header, &slot);
    if (!there.ok() || !*there) return there;
    if (Status status = Locate(slot, &incoming_); !status.ok()) return status;
    peeked_ = true;
    HoldRegions();
  }
  *incoming = incoming_;
  return true;
}

Result<bool> MappedRecvLane::PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) {
  if (ahead >= spec_.depth) return false;
  if (Result<bool> wired = Wire(); !wired.ok() || !*wired) return wired;
  const uint32_t index = (index_ + ahead) % spec_.depth;
  uint64_t slot = 0;
  Result<bool> there = ReadHeader(ticket_ + ahead, index, header, &slot);
  if (there.ok() && *there) *departure = headers_[index].time.load(std::memory_order_relaxed);
  return there;
}

Status MappedRecvLane::ReleaseStamped(Time departure) {
  if (peeked_) credit_->stamps[index_].store(departure, std::memory_order_relaxed);
  return Release();
}

Status MappedRecvLane::Release() {
  if (!peeked_) return ReleaseError(spec_);
  const uint32_t source = incoming_.header.source.region;
  if (source != 0 && !producer_.regions->Counts(source)) {
    return RemoteError(fmt::format("{}: peer rank {} has failed and revoked access to its buffer",
                                   Describe(spec_), producer_.rank));
  }
  DropRegions();
  peeked_ = false;
  ++ticket_;
  if (++index_ == spec_.depth) index_ = 0;
  ++counters_->credits;
  credit_->released.store(ticket_, std::memory_order_seq_cst);
  RingIfSleeping(producer_.wakeup, scope_, producer_.event_fd);
  return Status::Ok();
}

}  // namespace inccl::mapped
