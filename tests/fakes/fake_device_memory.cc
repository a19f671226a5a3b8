// SPDX-License-Identifier: Apache-2.0
//
// Of the fake device: its memory, and who has it open.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "fakes/fake_device.h"

namespace inccl::test {
namespace {

// What a handle of Share holds.
struct CompletionId {
  uint64_t magic = 0, pid = 0, id = 0;
  std::byte* data = nullptr;
};
static_assert(sizeof(CompletionId) <= DeviceShare::kHandleBytes);
constexpr uint64_t kTicketMagic = 0x6661'6b65'7469'636b;

}  // namespace

std::byte* FakeDevice::Allocate(size_t bytes, int device) {
  const std::lock_guard lock(mutex_);
  std::byte* const memory = Take(bytes, device, false);
  if (memory == nullptr) std::abort();
  return memory;
}

std::byte* FakeDevice::Take(size_t bytes, int device, bool freeable) {
  static std::atomic<uint64_t> ids{0};
  const size_t half = bytes_ / kDevices;
  if (bytes > half) return nullptr;
  const size_t rounded = (bytes + 255) / 256 * 256;
  std::byte* memory = nullptr;
  const auto freed = freed_[device].find(rounded);
  if (freeable && freed != freed_[device].end()) {
    memory = freed->second;
    freed_[device].erase(freed);
  } else {
    if (rounded > half - used_[device]) return nullptr;
    memory = device_view_.data() + static_cast<size_t>(device) * half + used_[device];
    used_[device] += rounded;
  }
  Allocation& made = allocations_[memory];
  made.id = ++ids;
  made.bytes = bytes;
  made.freeable = freeable;
  return memory;
}

Result<std::byte*> FakeDevice::AllocateOn(int device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* const memory = Take(bytes, device, true);
  if (memory == nullptr) {
    return Status(Code::kUnhandledCudaError, "the fake device has no memory left");
  }
  return memory;
}

void FakeDevice::FreeOn(int device, std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (DeviceOf(memory) != device || found == allocations_.end()) std::abort();
  const Allocation& freed = found->second;
  if (!freed.freeable) std::abort();
  if (std::any_of(std::begin(freed.opens), std::end(freed.opens), [](int n) { return n > 0; })) {
    std::fprintf(stderr, "fake device: memory is freed that is open\n");
    std::abort();
  }
  freed_[device].emplace((freed.bytes + 255) / 256 * 256, memory);
  allocations_.erase(found);
}

std::map<const std::byte*, FakeDevice::Allocation>::iterator FakeDevice::Holding(const void* memory,
                                                                                 size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(memory);
  auto found = allocations_.upper_bound(at);
  if (found == allocations_.begin()) return allocations_.end();
  --found;
  const size_t offset = static_cast<size_t>(at - found->first), size = found->second.bytes;
  return offset < size && bytes <= size - offset ? found : allocations_.end();
}

Status FakeDevice::WaitFor(int device) {
  if (device < 0 || device >= kDevices) std::abort();
  ++waits;
  return Status::Ok();
}

Result<DeviceShare> FakeDevice::Share(const void* memory, size_t bytes) {
  if (!sharing) return InvalidUsage("the fake device shares nothing");
  const std::lock_guard lock(mutex_);
  const auto found = Holding(memory, bytes);
  if (found == allocations_.end()) {
    return InvalidArgument(fmt::format("{} bytes at {}: not of one allocation", bytes, memory));
  }
  DeviceShare share;
  share.id = found->second.id;
  share.data = const_cast<std::byte*>(found->first);
  share.bytes = found->second.bytes;
  const CompletionId completion{kTicketMagic, static_cast<uint64_t>(getpid()), share.id,
                                share.data};
  std::memcpy(share.handle.data(), &completion, sizeof completion);
  ++shared;
  return share;
}

// Other devices see all of the file.
Result<DmaBuf> FakeDevice::DmaBufOf(const void* memory, size_t bytes) {
  if (!dma_bufs) return InvalidUsage("the fake device makes no dma-bufs");
  const std::lock_guard lock(mutex_);
  if (Holding(memory, bytes) == allocations_.end()) return InvalidArgument("of no allocation");
  constexpr size_t kPage = 4096;
  const auto from =
      static_cast<size_t>(static_cast<const std::byte*>(memory) - device_view_.data());
  const size_t begin = from / kPage * kPage;
  return DmaBuf{.file = UniqueFd(dup(file_.get())),
                .offset = begin,
                .data = device_view_.data() + begin,
                .bytes = (from + bytes - begin + kPage - 1) / kPage * kPage};
}

size_t FakeDevice::BytesFrom(int /*device*/, const std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = Holding(memory, 1);
  if (found == allocations_.end()) return 0;
  return found->second.bytes - static_cast<size_t>(memory - found->first);
}

Result<std::byte*> FakeDevice::Open(int device, const DeviceShare::Handle& handle) {
  if (device < 0 || device >= kDevices) std::abort();
  CompletionId completion;
  std::memcpy(&completion, handle.data(), sizeof completion);
  if (!opening || completion.magic != kTicketMagic ||
      completion.pid != static_cast<uint64_t>(getpid())) {
    return Status(Code::kUnhandledCudaError, "the fake device opens nothing of that kind");
  }
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(completion.data);
  if (found == allocations_.end() || found->second.id != completion.id) {
    return Status(Code::kUnhandledCudaError, "the fake device: what is to be opened was freed");
  }
  ++found->second.opens[device];
  ++opened;
  return completion.data;
}

void FakeDevice::Close(int device, std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end() || found->second.opens[device]-- == 0) {
    std::fprintf(stderr, "fake device: memory is closed that is not open\n");
    std::abort();
  }
  --opened;
}

bool FakeDevice::IsNear(int device, const void* memory) {
  if (DeviceOf(memory) == device) return true;
  const std::lock_guard lock(mutex_);
  const auto found = Holding(memory, 1);
  return found != allocations_.end() && found->second.opens[device] > 0;
}

}  // namespace inccl::test
