// SPDX-License-Identifier: Apache-2.0
#include "communicator/zero_copy.h"

#include <utility>

#include "base/log.h"
#include "memory/device_allocator.h"
#include "memory/host_allocator.h"

namespace inccl {
namespace {

constexpr size_t kLeastZeroCopySlices = 2;
constexpr uint64_t kOfDevice = uint64_t{1}
                               << 63;  // keeps their generations apart from HostAllocator's

}  // namespace

RegisteredBuffer ZeroCopy::RegisterBuffer(const void* data, size_t bytes, bool writable) {
  constexpr uintptr_t kPage = 4096;
  Region region = HostAllocator::Instance().Find(data, bytes);
  if (region.generation == 0) return {};
  region.writable = writable;
  const auto* const first = static_cast<const std::byte*>(data);
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(first) % kPage;
  const size_t head = beyond == 0 ? 0 : kPage - beyond;
  if (bytes < head + kPage) return {};
  const std::byte* const begin = first + head;
  const uint32_t id = transport_->ExportRegion(region);
  if (id == 0) return {};
  return {.region = id,
          .offset = static_cast<uint64_t>(begin - region.data),
          .begin = begin,
          .end = begin + (bytes - head) / kPage * kPage};
}

RegisteredBuffer ZeroCopy::RegisterDeviceBuffer(const void* data, size_t bytes) {
  const DeviceShare share = DeviceAllocator::Instance().Find(data, bytes);
  if (share.id == 0) return {};
  static_assert(DeviceShare::kHandleBytes == Region::kHandleBytes);
  const auto* const begin = static_cast<const std::byte*>(data);
  const uint32_t id = transport_->ExportRegion({.generation = kOfDevice | share.id,
                                                .data = share.data,
                                                .bytes = share.bytes,
                                                .on_device = true,
                                                .handle = share.handle});
  if (id == 0) return {};
  return {.region = id,
          .offset = static_cast<uint64_t>(begin - share.data),
          .begin = begin,
          .end = begin + bytes};
}

// Direct algorithms only: every consumer reads the input itself, and has read it before an in-place
// call overwrites it.
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
  if (call.collective == Collective::kAllReduce) output_ = RegisterBuffer(call.recv, bytes, true);
  if (bytes > 0) input_ = RegisterBuffer(call.send, bytes, false);
}

void ZeroCopy::BeginOnDevice(const Call& call, Algorithm algorithm) {
  if (!Applies(call, algorithm)) return;
  on_device_ = true;
  const size_t bytes = InputBytes(call);
  if (bytes > 0) input_ = RegisterDeviceBuffer(call.send, bytes);
  if (call.collective == Collective::kAllReduce) result_ = RegisterDeviceBuffer(call.recv, bytes);
}

void ZeroCopy::RevokeAccess() {
  if (on_device_) {
    for (const uint32_t region : {input_.region, result_.region}) {
      if (region != 0) transport_->InvalidateRegion(region);
    }
    Begin();
    return;
  }
  // The output first: in place it is also the input, and peers write to it.
  for (const auto& [registered, contents] : {std::pair(output_, HostAllocator::Contents::kLost),
                                             std::pair(input_, HostAllocator::Contents::kKept)}) {
    if (registered.region == 0) continue;
    const Status status = CatchOutOfMemory([&, region = registered, what = contents] {
      return HostAllocator::Instance().RevokeAccess(region.begin, region.end, what);
    });
    if (status.ok()) continue;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives,
        "rank {}/{}: peers that are late may still use the buffers of the failed call: {}", rank_,
        nranks_, status.message());
  }
  Begin();
}

}  // namespace inccl
