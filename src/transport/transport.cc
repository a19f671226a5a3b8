// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.h"

#include <algorithm>

#include "base/rng.h"

namespace inccl {

uint64_t LaneSpec::Key() const {
  uint64_t key = Mix64((uint64_t{static_cast<uint8_t>(lane_class)} << 56) |
                       (uint64_t{channel} << 48) | (uint64_t{depth} << 32) | slot_bytes);
  key = Mix64(key ^ static_cast<uint64_t>(producer));
  for (const int consumer : consumers) key = Mix64(key ^ static_cast<uint64_t>(consumer));
  return key;
}

namespace {

const Status& NoZeroCopy() {
  // One per thread: threads of all ranks copy it, which counts references.
  thread_local const Status status = InvalidArgument("this transport has no zero copy");
  return status;
}

}  // namespace

Status SendLane::PublishFrom(const SliceHeader& /*header*/, const std::byte* /*data*/,
                             bool /*on_device*/) {
  return InternalError("this lane sends from its slots only");
}

int LaneSpec::PlaceOf(int rank) const {
  return static_cast<int>(std::find(consumers.begin(), consumers.end(), rank) - consumers.begin());
}

std::vector<std::vector<int>> Transport::Split(int producer, std::span<const int> consumers) const {
  if (CapsFor(producer, consumers).multicast) return {{consumers.begin(), consumers.end()}};
  std::vector<std::vector<int>> sets;
  for (const int consumer : consumers) sets.push_back({consumer});
  return sets;
}

Result<MemoryHandle> Transport::Register(const void* /*data*/, size_t /*bytes*/,
                                         const Registration& /*how*/) {
  return NoZeroCopy();
}

Status Transport::CanRegister(const void* /*data*/, size_t /*bytes*/, bool /*on_device*/) const {
  return NoZeroCopy();
}

}  // namespace inccl
