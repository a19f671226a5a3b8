// SPDX-License-Identifier: Apache-2.0
#include "communicator/zero_copy.h"

#include <utility>

#include "base/log.h"
#include "memory/device_allocator.h"
#include "memory/host_allocator.h"

namespace inccl {
namespace {

constexpr size_t kLeastSlicesLent = 2;
constexpr uint64_t kOfDevice = uint64_t{1} << 63;  // in serials, apart from those of CallerMemory

}  // namespace

Lent Lending::LendBuffer(const void* data, size_t bytes, bool writable) {
  constexpr uintptr_t kPage = 4096;
  Region region = CallerMemory::Instance().Find(data, bytes);
  if (region.serial == 0) return {};
  region.writable = writable;
  const auto* const first = static_cast<const std::byte*>(data);
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(first) % kPage;
  const size_t head = beyond == 0 ? 0 : kPage - beyond;
  if (bytes < head + kPage) return {};
  const std::byte* const begin = first + head;
  const uint32_t id = transport_->Offer(region);
  if (id == 0) return {};
  return {.region = id,
          .offset = static_cast<uint64_t>(begin - region.data),
          .begin = begin,
          .end = begin + (bytes - head) / kPage * kPage};
}

Lent Lending::LendMemoryOfDevice(const void* data, size_t bytes) {
  const DeviceShare share = DeviceMemory::Instance().Find(data, bytes);
  if (share.id == 0) return {};
  static_assert(DeviceShare::kHandleBytes == Region::kHandleBytes);
  const auto* const begin = static_cast<const std::byte*>(data);
  const uint32_t id = transport_->Offer({.serial = kOfDevice | share.id,
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

// Direct algorithms alone: there every consumer reads the input itself, and what a call in place
// overwrites has been read by then.
bool Lending::Lends(const Call& call, Algorithm algorithm) const {
  return algorithm == Algorithm::kDirect && call.codec == nullptr &&
         call.count * SizeOf(call.type) >= kLeastSlicesLent * slice_bytes_;
}

size_t Lending::InputBytes(const Call& call) const {
  const size_t bytes = call.count * SizeOf(call.type);
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather: return bytes;
    case Collective::kReduceScatter: return bytes * static_cast<size_t>(nranks_);
    case Collective::kBroadcast: return call.root == rank_ ? bytes : 0;
    default: return 0;
  }
}

void Lending::Lend(const Call& call, Algorithm algorithm) {
  if (!Lends(call, algorithm)) return;
  const size_t bytes = InputBytes(call);
  // The output first: peers need not map again what is the input, too.
  if (call.collective == Collective::kAllReduce) output_ = LendBuffer(call.recv, bytes, true);
  if (bytes > 0) input_ = LendBuffer(call.send, bytes, false);
}

void Lending::LendOnDevice(const Call& call, Algorithm algorithm) {
  if (!Lends(call, algorithm)) return;
  on_device_ = true;
  const size_t bytes = InputBytes(call);
  if (bytes > 0) input_ = LendMemoryOfDevice(call.send, bytes);
  if (call.collective == Collective::kAllReduce) result_ = LendMemoryOfDevice(call.recv, bytes);
}

void Lending::TakeBack() {
  if (on_device_) {
    for (const uint32_t region : {input_.region, result_.region}) {
      if (region != 0) transport_->Withdraw(region);
    }
    Begin();
    return;
  }
  // The output first: in place it is the input as well, and then peers write to it.
  for (const auto& [lent, contents] : {std::pair(output_, CallerMemory::Contents::kLost),
                                       std::pair(input_, CallerMemory::Contents::kKept)}) {
    if (lent.region == 0) continue;
    const Status status = CatchOutOfMemory([&, region = lent, what = contents] {
      return CallerMemory::Instance().TakeAway(region.begin, region.end, what);
    });
    if (status.ok()) continue;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives,
        "rank {}/{}: peers that are late may still use the buffers of the failed call: {}", rank_,
        nranks_, status.message());
  }
  Begin();
}

}  // namespace inccl
