// SPDX-License-Identifier: Apache-2.0
#include "lending.h"

#include <utility>

#include "base/log.h"
#include "caller_memory.h"

namespace inccl {
namespace {

constexpr size_t kLeastSlicesLent = 2;

}  // namespace

Lent Lending::LendBuffer(const void* data, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const Region region = CallerMemory::Instance().Find(data, bytes);
  if (region.serial == 0) return {};
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

// Direct algorithms alone: there every consumer reads the input itself, and what a call in place
// overwrites has been read by then.
void Lending::Lend(const Call& call, Algorithm algorithm) {
  const size_t bytes = call.count * SizeOf(call.type);
  if (algorithm != Algorithm::kDirect || call.codec != nullptr ||
      bytes < kLeastSlicesLent * slice_bytes_) {
    return;
  }
  switch (call.collective) {
    case Collective::kAllReduce:
      input_ = LendBuffer(call.send, bytes);
      output_ = LendBuffer(call.recv, bytes);
      break;
    case Collective::kReduceScatter:
      input_ = LendBuffer(call.send, bytes * static_cast<size_t>(nranks_));
      break;
    case Collective::kAllGather: input_ = LendBuffer(call.send, bytes); break;
    case Collective::kBroadcast:
      if (call.root == rank_) input_ = LendBuffer(call.send, bytes);
      break;
    default: break;
  }
}

void Lending::TakeBack() {
  // The output first: in place it is the input as well, and then peers write to it.
  for (const auto& [lent, contents] : {std::pair(output_, CallerMemory::Contents::kLost),
                                       std::pair(input_, CallerMemory::Contents::kKept)}) {
    if (lent.region == 0) continue;
    const Status status = CallerMemory::Instance().TakeAway(lent.begin, lent.end, contents);
    if (status.ok()) continue;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives,
        "rank {}/{}: peers that are late may still use the buffers of the failed call: {}", rank_,
        nranks_, status.message());
  }
  input_ = output_ = {};
}

}  // namespace inccl
