// SPDX-License-Identifier: Apache-2.0
#include "transport/composite/composite_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transport/transport.h"

namespace inccl {

CompositeTransport::CompositeTransport(int rank, PairTable table, std::vector<Part> parts)
    : rank_(rank), table_(std::move(table)), caps_{.timed = false, .deep_lanes = true} {
  for (Part& part : parts) {
    if (!name_.empty()) name_ += "+";
    name_ += part.caps.name;
    caps_.timed = caps_.timed || part.caps.timed;
    caps_.deep_lanes = caps_.deep_lanes && part.caps.deep_lanes;
    if (part.caps.slot_memory < caps_.slot_memory) {
      caps_.slot_memory = part.caps.slot_memory;
      caps_.shared_slots = part.caps.shared_slots;
    }
    by_number_.push_back(part.transport.get());
    if (part.transport != nullptr) parts_.push_back(std::move(part.transport));
  }
  caps_.name = name_.c_str();
}

Result<std::unique_ptr<CompositeTransport>> CompositeTransport::Create(int rank, PairTable table,
                                                                       std::vector<Part> parts) {
  std::unique_ptr<CompositeTransport> made(
      new CompositeTransport(rank, std::move(table), std::move(parts)));
  std::vector<WakeupSource*> sources;
  for (const std::unique_ptr<Transport>& part : made->parts_) {
    sources.push_back(part->wakeup_source());
    if (sources.back() != nullptr) continue;
    return InternalError(fmt::format("rank {}: transport {} cannot be part of another one", rank,
                                     part->caps().name));
  }
  Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create(std::move(sources));
  if (!event.ok()) return event.status();
  made->wakeup_event_ = *std::move(event);
  return made;
}

int CompositeTransport::PartOf(int producer, std::span<const int> consumers) const {
  int part = PairTable::kNone;
  for (const int consumer : consumers) {
    const int of_pair = table_.Of(producer, consumer);
    if (part != PairTable::kNone && of_pair != part) return PairTable::kNone;
    part = of_pair;
  }
  return part;
}

// A part that this rank does not have serves none of its lanes; it counts as without multicast.
LaneCaps CompositeTransport::CapsFor(int producer, std::span<const int> consumers) const {
  const int part = PartOf(producer, consumers);
  if (part != PairTable::kNone) {
    const Transport* const transport = by_number_[static_cast<size_t>(part)];
    return transport == nullptr ? LaneCaps{} : transport->CapsFor(producer, consumers);
  }
  if (consumers.size() == 1) return {};
  LaneCaps all{.multicast = false, .read_in_place = true};
  for (const int consumer : consumers) {
    const LaneCaps one = CapsFor(producer, {&consumer, 1});
    all.read_in_place = all.read_in_place && one.read_in_place;
    all.max_slot_bytes = std::min(all.max_slot_bytes, one.max_slot_bytes);
  }
  return all;
}

std::vector<std::vector<int>> CompositeTransport::Split(int producer,
                                                        std::span<const int> consumers) const {
  std::vector<std::vector<int>> sets;
  for (size_t number = 0; number < by_number_.size(); ++number) {
    std::vector<int> served;
    for (const int consumer : consumers) {
      if (table_.Of(producer, consumer) == static_cast<int>(number)) served.push_back(consumer);
    }
    if (served.empty()) continue;
    const Transport* const part = by_number_[number];
    if (part == nullptr) {  // this rank is none of `served`
      sets.push_back(std::move(served));
      continue;
    }
    for (std::vector<int>& set : part->Split(producer, served)) sets.push_back(std::move(set));
  }
  return sets;
}

Result<Transport*> CompositeTransport::Opener(const LaneSpec& spec) const {
  const int part = PartOf(spec.producer, spec.consumers);
  Transport* const transport =
      part == PairTable::kNone ? nullptr : by_number_[static_cast<size_t>(part)];
  if (transport == nullptr) {
    return InvalidUsage(fmt::format("rank {}: {}: no part of transport {} serves this lane", rank_,
                                    Describe(spec), name_));
  }
  return transport;
}

Result<std::unique_ptr<SendLane>> CompositeTransport::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, table_.nranks(), *this);
  if (!status.ok()) return status;
  Result<Transport*> part = Opener(spec);
  if (!part.ok()) return part.status();
  return (*part)->OpenSend(spec);
}

Result<std::unique_ptr<RecvLane>> CompositeTransport::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, table_.nranks(), *this);
  if (!status.ok()) return status;
  Result<Transport*> part = Opener(spec);
  if (!part.ok()) return part.status();
  return (*part)->OpenRecv(spec);
}

// The handle is that of the first part that registers the memory.
Result<MemoryHandle> CompositeTransport::Register(const void* data, size_t bytes,
                                                  const Registration& how) {
  Status reason = NoExports()->CanRegister(data, bytes, false);
  MemoryHandle first;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Result<MemoryHandle> memory = parts_[i]->exports()->Register(data, bytes, how);
    if (i == 0 && !memory.ok()) reason = memory.status();
    if (memory.ok() && first.region == 0) first = *memory;
  }
  if (first.region == 0) return reason;
  return first;
}

void CompositeTransport::Deregister(const MemoryHandle& memory) {
  for (const std::unique_ptr<Transport>& part : parts_) part->exports()->Deregister(memory);
}

Status CompositeTransport::CanRegister(const void* data, size_t bytes, bool on_device) const {
  Status reason = NoExports()->CanRegister(data, bytes, false);
  for (size_t i = 0; i < parts_.size(); ++i) {
    Status status = parts_[i]->exports()->CanRegister(data, bytes, on_device);
    if (status.ok()) return status;
    if (i == 0) reason = std::move(status);
  }
  return reason;
}

Status CompositeTransport::RevokeAccess(const MemoryHandle& memory) {
  Status first;
  for (const std::unique_ptr<Transport>& part : parts_) {
    Status status = part->exports()->RevokeAccess(memory);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void CompositeTransport::SetImporter(RegionImporter* importer) {
  for (const std::unique_ptr<Transport>& part : parts_) part->exports()->SetImporter(importer);
}

void CompositeTransport::SlotMemory(std::vector<Span>* spans) const {
  for (const std::unique_ptr<Transport>& part : parts_) part->SlotMemory(spans);
}

Result<int> CompositeTransport::Progress(Time now) {
  int events = 0;
  for (const std::unique_ptr<Transport>& part : parts_) {
    Result<int> of_part = part->Progress(now);
    if (!of_part.ok()) return of_part;
    events += *of_part;
  }
  return events;
}

bool CompositeTransport::unsent() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->unsent(); });
}

void CompositeTransport::AppendUnsent(std::vector<int>* ranks) const {
  for (const std::unique_ptr<Transport>& part : parts_) part->AppendUnsent(ranks);
}

void CompositeTransport::DropUnsent() {
  for (const std::unique_ptr<Transport>& part : parts_) part->DropUnsent();
}

bool CompositeTransport::delivered() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const std::unique_ptr<Transport>& part) { return part->delivered(); });
}

void CompositeTransport::Quiesce(Time deadline) {
  for (const std::unique_ptr<Transport>& part : parts_) part->Quiesce(deadline);
}

uint64_t CompositeTransport::memory_bytes() const {
  uint64_t bytes = 0;
  for (const std::unique_ptr<Transport>& part : parts_) bytes += part->memory_bytes();
  return bytes;
}

TransportCounters CompositeTransport::counters() const {
  TransportCounters sum;
  for (const std::unique_ptr<Transport>& part : parts_) {
    const TransportCounters of_part = part->counters();
    sum.slices += of_part.slices;
    sum.payload_bytes += of_part.payload_bytes;
    sum.credits += of_part.credits;
  }
  return sum;
}

}  // namespace inccl
