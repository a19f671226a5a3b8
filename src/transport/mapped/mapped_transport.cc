// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped/mapped_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/rng.h"
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

namespace {

uint64_t MapKey(uint64_t key, int consumer) {
  return Mix64(key ^ static_cast<uint64_t>(static_cast<int64_t>(consumer)));
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Create(std::unique_ptr<ArenaMemory> memory, int rank,
                                             int nranks) {
  const size_t bytes = memory->bytes();
  if (bytes < kDataOffset + kPage || bytes % kPage != 0) {
    return InvalidArgument(
        fmt::format("rank {}: arena of {} bytes: not a multiple of {} of at least {}", rank, bytes,
                    kPage, kDataOffset + kPage));
  }
  std::unique_ptr<Arena> arena(new Arena(std::move(memory), rank, nranks));
  if (Status status = arena->memory_->Commit(0, kDirectoryOffset); !status.ok()) return status;
  arena->directory_end_ = kDirectoryOffset;
  ArenaHeader* header = new (arena->memory_->data()) ArenaHeader{};
  header->version = kArenaVersion;
  header->rank = rank;
  header->nranks = nranks;
  header->bytes = bytes;
  header->committed.store(kDataOffset, std::memory_order_relaxed);
  header->entries.store(0, std::memory_order_relaxed);
  header->magic.store(kArenaMagic, std::memory_order_release);
  return arena;
}

uint32_t Arena::MaxSlotBytes(size_t bytes) {
  if (bytes < kDataOffset + 2 * kPage) return 0;
  const size_t most = bytes - kDataOffset - kPage;  // for the headers
  return static_cast<uint32_t>(most < (size_t{1} << 30) ? most : size_t{1} << 30);
}

void Arena::CommitAhead(size_t bytes) {
  if (directory_end_ == kDirectoryOffset && memory_->Commit(directory_end_, kPage).ok()) {
    directory_end_ += kPage;
  }
  const size_t end = std::min(kDataOffset + RoundUp(bytes, kPage), memory_->bytes());
  if (end <= committed_end_) return;
  if (!memory_->Commit(committed_end_, end - committed_end_).ok()) return;
  ahead_used_ = std::max(ahead_used_, used_end_);
  committed_end_ = ahead_end_ = end;
  header()->committed.store(committed_end_, std::memory_order_release);
}

Result<uint64_t> Arena::Allocate(size_t bytes, size_t alignment) {
  const size_t total = memory_->bytes();
  // Devices register memory in the pieces in which it was committed, and a copy must stay within
  // one piece.
  size_t* used = &ahead_used_;
  if (RoundUp(*used, alignment) + bytes > ahead_end_) {
    used = &used_end_;
    *used = std::max(*used, ahead_end_);
  }
  size_t begin = RoundUp(*used, alignment);
  if (begin < committed_end_ && bytes > committed_end_ - begin) begin = committed_end_;
  if (begin > total || bytes > total - begin) {
    return SystemError(fmt::format(
        "rank {}: a lane needs {} bytes of shared memory, {} of the arena's {} are left", rank_,
        bytes, begin > total ? 0 : total - begin, total));
  }
  const size_t end = begin + bytes;
  const size_t committed_end = RoundUp(end, kPage);
  if (committed_end > committed_end_) {
    Status status = memory_->Commit(committed_end_, committed_end - committed_end_);
    if (!status.ok()) {
      return Status(status.code(), fmt::format("rank {}: a lane needs {} bytes: {}", rank_, bytes,
                                               status.message()));
    }
    committed_end_ = committed_end;
    header()->committed.store(committed_end_, std::memory_order_release);
  }
  *used = end;
  return uint64_t{begin};
}

Result<RegionBlock*> Arena::Regions(uint32_t block) {
  while (region_blocks_.size() <= block) {
    region_blocks_.reserve(kRegionBlocks);  // so that a block is announced only if it is kept
    Result<uint64_t> offset = Allocate(RegionBlockBytes(nranks_), kPage);
    if (!offset.ok()) return offset.status();
    std::atomic<uint64_t>& link =
        region_blocks_.empty() ? header()->table : region_blocks_.back()->next;
    region_blocks_.push_back(reinterpret_cast<RegionBlock*>(At(*offset)));
    link.store(*offset, std::memory_order_release);
    region_blocks_.front()->changes.fetch_add(1, std::memory_order_seq_cst);
  }
  return region_blocks_[block];
}

Status Arena::Announce(const DirectoryEntry& entry) {
  const uint32_t count = header()->entries.load(std::memory_order_relaxed);
  if (count == kDirectoryEntries) {
    return SystemError(
        fmt::format("rank {}: more than {} lane ends in shared memory", rank_, kDirectoryEntries));
  }
  const size_t offset = kDirectoryOffset + count * sizeof(DirectoryEntry);
  if (offset + sizeof(DirectoryEntry) > directory_end_) {
    if (Status status = memory_->Commit(directory_end_, kPage); !status.ok()) return status;
    directory_end_ += kPage;
  }
  std::memcpy(At(offset), &entry, sizeof(entry));
  // Publishes the entry and the zeroed memory it describes. seq_cst: see wakeup.h.
  header()->entries.store(count + 1, std::memory_order_seq_cst);
  return Status::Ok();
}

Result<std::unique_ptr<ArenaView>> ArenaView::Create(const std::byte* data, size_t bytes, int peer,
                                                     int nranks) {
  const auto wrong = [peer](const char* field, auto found, auto expected) {
    return InternalError(fmt::format("shared memory of peer rank {}: {} is {}, expected {}", peer,
                                     field, found, expected));
  };
  if (bytes < kDataOffset + kPage) return wrong("size", bytes, kDataOffset + kPage);
  const auto* header = reinterpret_cast<const ArenaHeader*>(data);
  const uint64_t magic = header->magic.load(std::memory_order_acquire);
  if (magic != kArenaMagic) return wrong("magic", magic, kArenaMagic);
  if (header->version != kArenaVersion) return wrong("version", header->version, kArenaVersion);
  if (header->rank != peer) return wrong("rank", header->rank, peer);
  if (header->nranks != nranks) return wrong("number of ranks", header->nranks, nranks);
  if (header->bytes != bytes) return wrong("size", header->bytes, bytes);
  return std::unique_ptr<ArenaView>(new ArenaView(data, bytes, peer, nranks));
}

Result<const RegionBlock*> ArenaView::RegionsAfter(const RegionBlock* block) const {
  const std::atomic<uint64_t>& link = block == nullptr ? header()->table : block->next;
  const uint64_t offset = link.load(std::memory_order_acquire);
  if (offset == 0) return static_cast<const RegionBlock*>(nullptr);
  const uint64_t committed = header()->committed.load(std::memory_order_acquire);
  const uint64_t end = committed < bytes_ ? committed : bytes_;
  if (offset % kPage != 0 || offset < kDataOffset || offset > end ||
      RegionBlockBytes(nranks_) > end - offset) {
    return InternalError(
        fmt::format("shared memory of peer rank {}: its regions at {} of {}", peer_, offset, end));
  }
  return reinterpret_cast<const RegionBlock*>(data_ + offset);
}

Status ArenaView::Check(const DirectoryEntry& entry) const {
  const auto wrong = [&](const char* what, uint64_t value) {
    return InternalError(fmt::format("shared memory of peer rank {}: entry {}: {} {} is invalid",
                                     peer_, scanned_, what, value));
  };
  const auto kind = static_cast<EntryKind>(entry.kind);
  if (kind != EntryKind::kHeaders && kind != EntryKind::kCredit) return wrong("kind", entry.kind);
  if (entry.consumer != (kind == EntryKind::kCredit ? peer_ : -1)) {
    return wrong("consumer", static_cast<uint32_t>(entry.consumer));
  }
  if (entry.depth < 1 || entry.depth > UINT16_MAX) return wrong("depth", entry.depth);
  const size_t bytes =
      kind == EntryKind::kHeaders ? HeadersBytes(entry.depth) : CreditBytes(entry.depth);
  const uint64_t committed = header()->committed.load(std::memory_order_acquire);
  const uint64_t end = committed < bytes_ ? committed : bytes_;
  if (entry.offset % 64 != 0 || entry.offset < kDataOffset || entry.offset > end) {
    return wrong("offset", entry.offset);
  }
  if (bytes > end - entry.offset) return wrong("size", bytes);
  return Status::Ok();
}

Status ArenaView::Scan() {
  if (!error_.ok()) return error_;
  const uint32_t count = header()->entries.load(std::memory_order_seq_cst);
  if (count > kDirectoryEntries || count < scanned_) {
    error_ = InternalError(fmt::format(
        "shared memory of peer rank {}: {} directory entries after {}", peer_, count, scanned_));
    return error_;
  }
  while (scanned_ < count) {
    DirectoryEntry entry;  // a copy, so that the peer cannot change it after the check
    std::memcpy(&entry, data_ + kDirectoryOffset + scanned_ * sizeof(entry), sizeof(entry));
    if (error_ = Check(entry); !error_.ok()) return error_;
    entries_.emplace(MapKey(entry.key, entry.consumer), entry);
    ++scanned_;
  }
  return Status::Ok();
}

Result<const std::byte*> ArenaView::Find(uint64_t key, int consumer, uint32_t slot_bytes,
                                         uint32_t depth) {
  if (Status status = Scan(); !status.ok()) return status;
  const auto [first, last] = entries_.equal_range(MapKey(key, consumer));
  for (auto it = first; it != last; ++it) {
    const DirectoryEntry& entry = it->second;
    if (entry.key != key || entry.consumer != consumer) continue;
    if (entry.slot_bytes != slot_bytes || entry.depth != depth) {
      return InternalError(
          fmt::format("shared memory of peer rank {}: lane {:016x} is {} x {} bytes, expected {} x "
                      "{}",
                      peer_, key, entry.depth, entry.slot_bytes, depth, slot_bytes));
    }
    return data_ + entry.offset;
  }
  return static_cast<const std::byte*>(nullptr);
}

}  // namespace inccl::mapped
