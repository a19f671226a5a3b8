// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/runtime.h"

namespace inccl::verbs {
namespace {

constexpr uint32_t kRegion = uint32_t{1} << 31;  // no id of a transport that peers import from
// Identities of memory that is not of ccl_mem_alloc, apart from the generations of that.
constexpr uint64_t kOwnMemory = uint64_t{1} << 62;

const Status& Refused() {
  thread_local const Status status =
      InvalidArgument("the device could not register this memory before, or it is not registered");
  return status;
}

}  // namespace

CallerMemory::CallerMemory(std::vector<const Device*> devices, Status gpus)
    : devices_(std::move(devices)), gpus_(std::move(gpus)), last_own_(kOwnMemory) {
  for (const Device* const device : devices_) {
    const std::string& why_not = device->info().why_no_dma_bufs;
    if (gpus_.ok() && !why_not.empty()) {
      gpus_ = InvalidUsage(fmt::format("{}: {}", device->name(), why_not));
    }
  }
  HostAllocator::Instance().Observe(this);
}

CallerMemory::~CallerMemory() { HostAllocator::Instance().Forget(this); }

Status CallerMemory::CanRegister(const void* data, size_t bytes, bool on_device) const {
  if (on_device && !gpus_.ok()) return gpus_;
  return data != nullptr && bytes > 0 ? Status::Ok() : InvalidArgument("no memory");
}

Result<CallerMemory::Entry*> CallerMemory::Make(const Region& region, bool keep) {
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
  Entry entry{.memory = region.generation,
              .begin = region.data,
              .end = region.data + region.bytes,
              .used = ++uses_};
  DmaBuf buffer;
  if (region.on_device) {
    Result<DmaBuf> made = CurrentDevice()->DmaBufOf(region.data, region.bytes);
    if (!made.ok()) return made.status();
    buffer = *std::move(made);
  }
  for (const Device* const device : devices_) {
    Result<MemoryRegion> made =
        region.on_device ? device->Register(buffer)
                         : device->Register(region.data, region.bytes, Writer::kThisRank);
    if (!made.ok()) return made.status();
    entry.regions.push_back(*std::move(made));
  }
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

// Memory of ccl_mem_alloc is registered whole and known by its generation; other memory by its
// address, and registered anew by each that keeps it.
Result<MemoryHandle> CallerMemory::Register(const void* data, size_t bytes,
                                            const Registration& how) {
  if (how.on_device && !gpus_.ok()) return gpus_;
  // Before the lock, because ccl_mem_free holds the allocator's when it calls OnFree.
  Region region;
  if (how.on_device) {
    region = FindOnDevice(data, bytes);
  } else if (Result<Region> found = FindRegion(data, bytes, false); found.ok()) {
    region = *found;
  }
  const bool own = region.generation == 0;
  const auto* const begin = static_cast<const std::byte*>(data);
  const MutexLock lock(&mutex_);
  // Slices of an earlier call were the last to use these.
  std::erase_if(entries_, [](const Entry& entry) { return entry.replaced; });
  const auto found =
      own && how.keep
          ? entries_.end()
          : std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
              return own ? entry.Covers(begin, bytes) : entry.memory == region.generation;
            });
  Entry* entry = found == entries_.end() ? nullptr : &*found;
  if (entry == nullptr) {
    if (own ? !how.keep : region.generation == refused_) return Refused();
    if (own) {
      region = {.generation = ++last_own_,
                .data = const_cast<std::byte*>(begin),
                .bytes = bytes,
                .on_device = how.on_device};
    }
    Result<Entry*> made = Make(region, how.keep);
    if (!made.ok()) {
      refused_ = region.generation;
      return made.status();
    }
    entry = *made;
  }
  entry->used = ++uses_;
  if (how.keep) ++entry->keepers;
  return MemoryHandle{.region = kRegion,
                      .offset = static_cast<uint64_t>(begin - entry->begin),
                      .begin = begin,
                      .end = begin + bytes,
                      .memory = entry->memory};
}

void CallerMemory::Deregister(const MemoryHandle& memory) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_, [&](Entry& entry) {
    return entry.memory == memory.memory && entry.keepers > 0 && --entry.keepers == 0;
  });
}

void CallerMemory::Clear() {
  const MutexLock lock(&mutex_);
  entries_.clear();
}

const CallerMemory::Entry* CallerMemory::Find(const std::byte* data, size_t bytes) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.Covers(data, bytes); });
  return found == entries_.end() ? nullptr : &*found;
}

bool CallerMemory::Holds(const std::byte* data, size_t bytes) const {
  const MutexLock lock(&mutex_);
  return Find(data, bytes) != nullptr;
}

std::string CallerMemory::RegistrationOf(const std::byte* data, size_t bytes) const {
  const MutexLock lock(&mutex_);
  const Entry* const entry = Find(data, bytes);
  if (entry == nullptr) return "";
  return fmt::format("{} to {}", fmt::ptr(entry->begin), fmt::ptr(entry->end));
}

void CallerMemory::OnReplace(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&mutex_);
  for (Entry& entry : entries_) {
    entry.replaced = entry.replaced || (entry.begin < end && begin < entry.end);
  }
}

void CallerMemory::OnFree(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.begin < end && begin < entry.end; });
}

}  // namespace inccl::verbs
