// SPDX-License-Identifier: Apache-2.0
#include "communicator/zero_copy.h"

#include <algorithm>

#include "base/log.h"

namespace inccl {
namespace {

constexpr size_t kLeastZeroCopySlices = 2;

}  // namespace

// Memory that the transport does not export goes through slots.
MemoryHandle ZeroCopy::Register(const void* data, size_t bytes, const Registration& how) {
  const Result<MemoryHandle> memory = transport_->exports()->Register(data, bytes, how);
  return memory.ok() ? *memory : MemoryHandle{};
}

// Every consumer reads the input itself, and has read it before an in-place call overwrites it.
bool ZeroCopy::Applies(const Call& call, Algorithm algorithm) const {
  return TraitsOf(algorithm).zero_copy && call.codec == nullptr &&
         call.bytes() >= kLeastZeroCopySlices * slice_bytes_;
}

size_t ZeroCopy::InputBytes(const Call& call) const {
  const size_t bytes = call.bytes();
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather: return bytes;
    case Collective::kReduceScatter: return bytes * static_cast<size_t>(nranks_);
    case Collective::kBroadcast: return call.root == rank_ ? bytes : 0;
    default: return 0;
  }
}

void ZeroCopy::Begin(const Call& call, Algorithm algorithm) {
  if (!Applies(call, algorithm)) return;
  const size_t bytes = InputBytes(call);
  // The output first: if it is the input as well, peers do not map it again.
  if (call.collective == Collective::kAllReduce) {
    output_ = Register(call.recv, bytes, {.access = Access::kReadWrite});
  }
  if (bytes > 0) input_ = Register(call.send, bytes, {});
}

void ZeroCopy::BeginOnDevice(const Call& call, Algorithm algorithm) {
  if (!Applies(call, algorithm)) return;
  const size_t bytes = InputBytes(call);
  if (bytes > 0) input_ = Register(call.send, bytes, {.on_device = true});
  if (call.collective == Collective::kAllReduce) {
    result_ = Register(call.recv, bytes, {.on_device = true});
  }
}

void ZeroCopy::RevokeAccess() {
  // The output first: in place it is also the input, and peers write to it.
  for (const MemoryHandle* const memory : {&output_, &input_, &result_}) {
    const Status status =
        CatchOutOfMemory([&] { return transport_->exports()->RevokeAccess(*memory); });
    if (status.ok()) continue;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives,
        "rank {}/{}: peers that are late may still use the buffers of the failed call: {}", rank_,
        nranks_, status.message());
  }
  Begin();
}

void* Registrations::Add(const void* data, size_t bytes, bool on_device) {
  auto entry = std::make_unique<Entry>(Entry{data, bytes, on_device, {}});
  if (const Status status = transport_->exports()->CanRegister(data, bytes, on_device);
      !status.ok()) {
    LogRefusal(*entry, status);
    return nullptr;
  }
  Entry* const added = entry.get();
  const MutexLock lock(&mutex_);
  // Remove must not need memory.
  removed_.reserve(removed_.size() + entries_.size() + 1);
  added_.reserve(added_.size() + 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a name, never dereferenced
  auto* const handle = reinterpret_cast<void*>(++last_handle_);
  entries_.emplace(handle, std::move(entry));
  added_.push_back(added);
  pending_.store(true, std::memory_order_release);
  return handle;
}

bool Registrations::Remove(const void* handle) {
  const MutexLock lock(&mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return false;
  const Entry& entry = *found->second;
  std::erase(added_, &entry);
  if (entry.memory.region != 0) {
    removed_.push_back(entry.memory);
    pending_.store(true, std::memory_order_release);
  }
  entries_.erase(found);
  return true;
}

void Registrations::ApplyChanges() {
  const MutexLock lock(&mutex_);
  for (const MemoryHandle& memory : removed_) transport_->exports()->Deregister(memory);
  removed_.clear();
  for (Entry* const entry : added_) {
    // Peers may write: the application may receive into this memory as well as send from it.
    const Status status = CatchOutOfMemory([&]() -> Status {
      const Result<MemoryHandle> memory = transport_->exports()->Register(
          entry->data, entry->bytes,
          {.access = entry->on_device ? Access::kRead : Access::kReadWrite,
           .on_device = entry->on_device,
           .keep = true});
      if (memory.ok()) entry->memory = *memory;
      return memory.ok() ? Status::Ok() : memory.status();
    });
    if (!status.ok()) LogRefusal(*entry, status);
  }
  added_.clear();
  pending_.store(false, std::memory_order_release);
}

void Registrations::LogRefusal(const Entry& entry, const Status& why) const {
  Log(LogLevel::kInfo, LogSubsystem::kTransport, "{}: {} bytes of {} at {} are not registered: {}",
      rank_name_, entry.bytes, entry.on_device ? "a device" : "the host", entry.data,
      why.message());
}

}  // namespace inccl
