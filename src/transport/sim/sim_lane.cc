// SPDX-License-Identifier: Apache-2.0
#include "transport/sim/sim_lane.h"

#include <algorithm>
#include <cstring>

namespace inccl::sim {

PoisonedBuffer::PoisonedBuffer(size_t bytes)
    : bytes_(bytes), storage_(new std::byte[bytes + 64]), data_(storage_.get()) {
  const auto misaligned = reinterpret_cast<uintptr_t>(data_) % 64;
  if (misaligned != 0) data_ += 64 - misaligned;
  Poison();
}

void PoisonedBuffer::Poison() { std::memset(data_, static_cast<int>(kPoison), bytes_); }

SimLane::SimLane(const LaneSpec& lane_spec) : spec(lane_spec) {
  for (const int rank : spec.consumers) {
    Consumer consumer;
    consumer.rank = rank;
    consumer.headers.resize(spec.depth);
    consumer.slice_stamps.resize(spec.depth);
    consumer.credit_stamps.resize(spec.depth);
    consumers.push_back(std::move(consumer));
  }
}

SimLane::Consumer* SimLane::Find(int rank) {
  for (Consumer& consumer : consumers) {
    if (consumer.rank == rank) return &consumer;
  }
  return nullptr;
}

void SimLane::NeedSlots(Consumer* consumer) {
  while (consumer->slots.size() < spec.depth) consumer->slots.emplace_back(spec.slot_bytes);
}

uint64_t SimLane::LeastCredited() const {
  uint64_t least = published;
  for (const Consumer& consumer : consumers) least = std::min(least, consumer.credited);
  return least;
}

}  // namespace inccl::sim
