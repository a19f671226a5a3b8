// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace inccl::verbs {
namespace {

// Ids of other transports, which Adopt takes over, count from 1.
constexpr uint32_t kOwnIds = uint32_t{1} << 31;
// Identities of memory that is not of ccl_mem_alloc, apart from the generations of that.
constexpr uint64_t kOwnMemory = uint64_t{1} << 62;

const Status& Refused() {
  thread_local const Status status =
      InvalidArgument("the device could not register this memory before, or it is not registered");
  return status;
}

const Status& OnDevice() {
  thread_local const Status status =
      InvalidArgument("memory of a device, which this transport does not send from");
  return status;
}

}  // namespace

CallerMemory::CallerMemory(std::vector<const Device*> devices)
    : devices_(std::move(devices)), last_id_(kOwnIds) {
  HostAllocator::Instance().Observe(this);
}

CallerMemory::~CallerMemory() { HostAllocator::Instance().Forget(this); }

Status CallerMemory::CanRegister(const void* data, size_t bytes, bool on_device) {
  if (on_device) return OnDevice();
  return data != nullptr && bytes > 0 ? Status::Ok() : InvalidArgument("no memory");
}

MemoryHandle CallerMemory::Entry::Handle(const void* data, size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(data);
  return {.region = id,
          .offset = static_cast<uint64_t>(first - begin),
          .begin = first,
          .end = first + bytes,
          .memory = generation != 0 ? generation : kOwnMemory | id};
}

CallerMemory::Entry* CallerMemory::Find(const Region& region, const void* data, size_t bytes,
                                        bool keep) {
  const auto* const begin = static_cast<const std::byte*>(data);
  for (Entry& entry : entries_) {
    if (entry.generation != region.generation) continue;
    // Other memory is known by its address, and registered anew by each that keeps it.
    if (entry.generation == 0 && (keep || begin < entry.begin || begin > entry.end ||
                                  bytes > static_cast<size_t>(entry.end - begin))) {
      continue;
    }
    entry.used = ++uses_;
    return &entry;
  }
  return nullptr;
}

Result<CallerMemory::Entry*> CallerMemory::Make(uint32_t id, uint64_t generation, const void* data,
                                                size_t bytes, bool keep) {
  const auto found = [](const Entry& entry) { return entry.keepers == 0; };
  const auto count = static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), found));
  if (keep && entries_.size() - count >= kMostKept) {
    return SystemError(fmt::format("{} regions are registered", kMostKept));
  }
  if (!keep && count >= kMostFound) {
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
          return std::pair(!found(a), a.used) < std::pair(!found(b), b.used);
        }));
  }
  const auto* const begin = static_cast<const std::byte*>(data);
  Entry entry{
      .id = id, .generation = generation, .begin = begin, .end = begin + bytes, .used = ++uses_};
  for (const Device* const device : devices_) {
    Result<MemoryRegion> made = device->Register(const_cast<void*>(data), bytes, Writer::kThisRank);
    if (!made.ok()) return made.status();
    entry.regions.push_back(*std::move(made));
  }
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

Result<MemoryHandle> CallerMemory::Register(const void* data, size_t bytes,
                                            const Registration& how) {
  if (how.on_device) return OnDevice();
  // Before the lock, because ccl_mem_free holds the allocator's when it calls OnFree.
  Region region;
  if (Result<Region> found = FindRegion(data, bytes, false); found.ok()) region = *found;
  const MutexLock lock(&mutex_);
  Entry* entry = Find(region, data, bytes, how.keep);
  if (entry == nullptr) {
    if (region.generation == 0 ? !how.keep : region.generation == refused_) return Refused();
    const bool own = region.generation == 0;
    Result<Entry*> made = Make(++last_id_, region.generation, own ? data : region.data,
                               own ? bytes : region.bytes, how.keep);
    if (!made.ok()) {
      refused_ = region.generation;
      return made.status();
    }
    entry = *made;
  }
  if (how.keep) ++entry->keepers;
  return entry->Handle(data, bytes);
}

void CallerMemory::Adopt(const MemoryHandle& memory, bool keep) {
  if (memory.region == 0) return;
  const Result<Region> region = FindRegion(memory.begin, 1, false);
  const MutexLock lock(&mutex_);
  // An id that the other transport has given to other memory before.
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.id == memory.region && entry.generation != memory.memory;
  });
  if (memory.on_device || !region.ok() || region->generation != memory.memory) return;
  Entry* entry = Find(*region, memory.begin, 1, false);
  if (entry == nullptr && region->generation != refused_) {
    Result<Entry*> made =
        Make(memory.region, region->generation, region->data, region->bytes, keep);
    if (made.ok()) entry = *made;
    if (!made.ok()) refused_ = region->generation;
  }
  if (entry == nullptr) return;
  entry->id = memory.region;
  if (keep) ++entry->keepers;
}

void CallerMemory::Deregister(const MemoryHandle& memory) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_, [&](Entry& entry) {
    return entry.Handle(entry.begin, 0).memory == memory.memory && entry.keepers > 0 &&
           --entry.keepers == 0;
  });
}

void CallerMemory::Clear() {
  const MutexLock lock(&mutex_);
  entries_.clear();
}

CallerMemory::Source CallerMemory::At(const RemoteAddress& place, size_t bytes,
                                      size_t device) const {
  const MutexLock lock(&mutex_);
  for (const Entry& entry : entries_) {
    if (entry.id != place.region) continue;
    const auto size = static_cast<size_t>(entry.end - entry.begin);
    if (place.offset > size || bytes > size - place.offset) return {};
    return {.data = entry.begin + place.offset, .key = entry.regions[device]->lkey};
  }
  return {};
}

void CallerMemory::OnFree(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.begin < end && begin < entry.end; });
}

}  // namespace inccl::verbs
