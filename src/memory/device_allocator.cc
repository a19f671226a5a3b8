// SPDX-License-Identifier: Apache-2.0
#include "memory/device_allocator.h"

#include <fmt/format.h>
#include <pthread.h>

#include <iterator>
#include <utility>

#include "base/log.h"
#include "memory/host_allocator.h"

namespace inccl {

DeviceAllocator& DeviceAllocator::Instance() {
  static auto* const memory = [] {
    auto* made = new DeviceAllocator;
    // The forking thread takes the mutex before, and gives it up in the parent and in the child.
    pthread_atfork([]() INCCL_NO_THREAD_SAFETY_ANALYSIS { Instance().mutex_.Lock(); },
                   []() INCCL_NO_THREAD_SAFETY_ANALYSIS { Instance().mutex_.Unlock(); },
                   []() INCCL_NO_THREAD_SAFETY_ANALYSIS {
                     Instance().ForkedChild();
                     Instance().mutex_.Unlock();
                   });
    return made;
  }();
  return *memory;
}

// The smallest kept piece of this device with at least `bytes` and at most `most` bytes.
DeviceAllocator::Pieces::iterator DeviceAllocator::Fitting(const Device* device, int number,
                                                           size_t bytes, size_t most) {
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    const Piece& piece = *it->second;
    if (piece.device != device || piece.number != number) continue;
    if (piece.bytes < bytes || piece.bytes > most) continue;
    if (best == kept_.end() || piece.bytes < best->second->bytes) best = it;
  }
  return best;
}

void* DeviceAllocator::Take(Pieces::iterator kept) {
  auto* const data = const_cast<std::byte*>(kept->first);
  pieces_.insert(kept_.extract(kept));
  ++count_;
  return data;
}

Result<void*> DeviceAllocator::Allocate(Device* device, int number, size_t bytes) {
  const size_t unit = device->ShareGranularity();
  // Smaller pieces share a unit with other memory and are never exported, so they are not rounded.
  if (bytes >= unit) bytes = (bytes + unit - 1) / unit * unit;
  size_t kept = 0;
  {
    const MutexLock lock(&mutex_);
    if (const auto found = Fitting(device, number, bytes, 2 * bytes); found != kept_.end()) {
      return Take(found);
    }
    for (const auto& [data, piece] : kept_) {
      if (piece->device == device && piece->number == number) kept += piece->bytes;
    }
  }
  Result<std::byte*> memory = device->AllocateOn(number, bytes);
  if (!memory.ok()) {
    if (kept == 0) return memory.status();
    const MutexLock lock(&mutex_);
    if (const auto found = Fitting(device, number, bytes, SIZE_MAX); found != kept_.end()) {
      return Take(found);
    }
    return Status(
        memory.status().code(),
        fmt::format("{} ({} bytes that were freed are kept, as others may have them open)",
                    memory.status().message(), kept));
  }
  try {
    const MutexLock lock(&mutex_);
    auto piece = std::make_shared<Piece>(device, number, bytes, ++last_id_);
    pieces_.insert_or_assign(*memory, std::move(piece));
    ++count_;
  } catch (...) {
    device->FreeOn(number, *memory);
    throw;
  }
  return *memory;
}

// Freeing may wait for all work on the device, so it runs without mutex_.
bool DeviceAllocator::Free(void* data) {
  Pieces::node_type taken;
  {
    const MutexLock lock(&mutex_);
    const auto found = pieces_.find(static_cast<const std::byte*>(data));
    if (found == pieces_.end()) return false;
    taken = pieces_.extract(found);
    --count_;
    if (forked_) return true;
  }
  Piece& piece = *taken.mapped();
  HostAllocator::Instance().Announce(taken.key(), taken.key() + piece.bytes);
  const bool shared = [&] {
    const MutexLock lock(&piece.mutex);
    return piece.share.id != 0;
  }();
  if (!shared) {
    piece.device->FreeOn(piece.number, static_cast<std::byte*>(data));
    return true;
  }
  // Memory that some work may still use is not given out again.
  const Status idle = piece.device->WaitFor(piece.number);
  if (!idle.ok()) {
    Log(LogLevel::kWarn, LogSubsystem::kInit, "{} bytes of device {} are lost: {}", piece.bytes,
        piece.number, idle.message());
    return true;
  }
  const MutexLock lock(&mutex_);
  kept_.insert(std::move(taken));
  return true;
}

DeviceAllocator::Pieces::iterator DeviceAllocator::Holding(const std::byte* data, size_t bytes) {
  const auto after = pieces_.upper_bound(data);
  if (after == pieces_.begin()) return pieces_.end();
  const auto found = std::prev(after);
  const auto offset = static_cast<size_t>(data - found->first);
  const size_t size = found->second->bytes;
  if (offset >= size || bytes > size - offset) return pieces_.end();
  return found;
}

DeviceShare DeviceAllocator::PieceOf(const void* data, size_t bytes) {
  if (count_.load(std::memory_order_relaxed) == 0) return {};
  const MutexLock lock(&mutex_);
  const auto found = Holding(static_cast<const std::byte*>(data), bytes);
  if (forked_ || found == pieces_.end()) return {};
  const Piece& piece = *found->second;
  return {piece.id, const_cast<std::byte*>(found->first), piece.bytes, {}};
}

DeviceShare DeviceAllocator::Find(const void* data, size_t bytes) {
  if (count_.load(std::memory_order_relaxed) == 0) return {};
  std::shared_ptr<Piece> piece;
  std::byte* begin = nullptr;
  {
    const MutexLock lock(&mutex_);
    if (forked_) return {};
    const auto found = Holding(static_cast<const std::byte*>(data), bytes);
    if (found == pieces_.end()) return {};
    begin = const_cast<std::byte*>(found->first);
    piece = found->second;
  }
  // The driver may take its time: those who look for other pieces need not wait for that.
  const MutexLock lock(&piece->mutex);
  if (!piece->asked) {
    piece->asked = true;
    if (piece->bytes < piece->device->ShareGranularity()) return {};
    const Result<DeviceShare> share = piece->device->Share(begin, piece->bytes);
    if (share.ok()) {
      piece->share = *share;
      piece->share.id = piece->id;
    }
  }
  return piece->share;
}

void DeviceAllocator::Forget(const Device* device) {
  const MutexLock lock(&mutex_);
  const auto gone = [device](const auto& entry) { return entry.second->device == device; };
  count_ -= std::erase_if(pieces_, gone);
  std::erase_if(kept_, gone);
}

// The memory belongs to the parent: the child cannot free it and only drops its records. It locks
// no piece's mutex, since a thread that exists only in the parent may have held it during the fork.
void DeviceAllocator::ForkedChild() {
  forked_ = forked_ || !pieces_.empty() || !kept_.empty();
  kept_.clear();
}

}  // namespace inccl
