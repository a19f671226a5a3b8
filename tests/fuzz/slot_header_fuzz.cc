// SPDX-License-Identifier: Apache-2.0
//
// A lane in memory that the other end can write: whatever stands in a slot's header, a peek shows
// nothing, an error, or a slice that fits the slot.
#include <cstring>

#include "fuzz/fuzz.h"
#include "transport/loopback/loopback.h"

namespace inccl::fuzz {

void Run(Data data) {
  static const LaneSpec spec{.lane_class = LaneClass::kData,
                             .channel = 0,
                             .producer = 0,
                             .consumers = {1},
                             .slot_bytes = 256,
                             .depth = 2};
  std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(2);
  Require(ends.size() == 2, "there is memory");
  Result<std::unique_ptr<SendLane>> send = ends[0]->OpenSend(spec);
  Result<std::unique_ptr<RecvLane>> recv = ends[1]->OpenRecv(spec);
  Require(send.ok() && recv.ok(), "the lane opens");
  Input input(data);
  for (int slices = 0; slices < 6 && !input.empty(); ++slices) {
    const Result<Span> slot = (*send)->TryAcquire();
    Require(slot.ok() && slot->data != nullptr, "a slot is free");
    const bool publish = (input.Byte() & 1) != 0;
    if (publish) {
      const Status status = (*send)->Publish({.bytes = input.Byte(), .slice = 1, .signature = 2});
      Require(status.ok(), "a slice is published");
    }
    const Data header = input.Take(kHeaderBytes);
    std::memcpy(slot->data - kHeaderBytes, header.data(), header.size());
    RecvLane::Incoming incoming;
    const Result<bool> there = (*recv)->TryPeek(&incoming);
    if (!there.ok() || !*there) return;
    Require(incoming.header.bytes <= spec.slot_bytes, "a slice fits its slot");
    volatile unsigned sum = 0;
    for (uint32_t i = 0; i < incoming.header.bytes; ++i) {
      sum = sum + std::to_integer<unsigned>(incoming.payload[i]);
    }
    Require((*recv)->Release().ok(), "what was shown can be released");
    if (!publish) return;  // the ends do not agree any more how many there were
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::byte> valid(2, std::byte{1}), wild(66, std::byte{255}), zero(66);
  return {valid, wild, zero};
}

}  // namespace inccl::fuzz
