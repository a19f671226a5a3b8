// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_lanes.h"

#include <fmt/format.h>

#include <utility>

#include "transport/transport.h"
#include "transport/verbs/verbs_peer.h"

namespace inccl::verbs {

Result<Slots> Slots::Create(const Device& device, const LaneSpec& spec, Writer writer) {
  constexpr size_t kPageBytes = 4096, kLineBytes = 64;
  const size_t frame = sizeof(FrameHeader) + spec.slot_bytes;
  const size_t unit = frame >= kPageBytes ? kPageBytes : kLineBytes;
  Slots slots;
  slots.stride = static_cast<uint32_t>((frame + unit - 1) / unit * unit);
  slots.depth = spec.depth;
  Result<RegisteredMemory> memory = device.Allocate(size_t{slots.stride} * spec.depth, writer);
  if (!memory.ok()) {
    return Status(memory.status().code(),
                  fmt::format("verbs: {}: {}", Describe(spec), memory.status().message()));
  }
  slots.memory = *std::move(memory);
  slots.base = slots.memory.data();
  slots.local_key = slots.memory.region->lkey;
  slots.remote_key = slots.memory.region->rkey;
  return slots;
}

Result<Span> VerbsSendLane::TryAcquire() {
  if (!acquired_) {
    if (!peer_->HasSlot(*end_)) {
      if (Status status = peer_->Lost(); !status.ok()) return status;
      return Span{};
    }
    acquired_ = true;
  }
  return Span{end_->slots.payload(end_->published), end_->spec.slot_bytes};
}

// A call waits for the completions of what is sent in place, and a small payload is copied faster.
bool VerbsSendLane::SendsFrom(const std::byte* data, size_t bytes, bool /*on_device*/) const {
  constexpr size_t kLeastInPlace = 4096;
  return bytes >= kLeastInPlace && memory_->Holds(data, bytes);
}

Status VerbsSendLane::PublishFrom(const SliceHeader& header, const std::byte* data,
                                  bool on_device) {
  if (Status status = CheckPublish(end_->spec, acquired_, header); !status.ok()) return status;
  if (Status status = peer_->Lost(); !status.ok()) return status;
  acquired_ = false;
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  FrameHeader frame;
  frame.kind = tcp::FrameKind::kSlice;
  frame.lane = end_->lane;
  frame.bytes = header.bytes;
  frame.slice = header.slice;
  frame.signature = header.signature;
  frame.credit_lane = (header.is_input ? kIsInput : 0) | (on_device ? kUnread : 0);
  return peer_->Send(end_, frame, data);
}

Result<bool> VerbsRecvLane::TryPeek(Incoming* incoming) {
  if (end_->arrived == end_->released) {
    if (Status status = peer_->Lost(); !status.ok()) return status;
    return false;
  }
  const FrameHeader& frame = end_->headers[end_->released % end_->spec.depth];
  incoming->header = {.bytes = frame.bytes,
                      .slice = frame.slice,
                      .signature = frame.signature,
                      .is_input = (frame.credit_lane & kIsInput) != 0};
  incoming->payload = end_->slots.payload(end_->released);
  incoming->target = nullptr;
  peeked_ = true;
  return true;
}

Status VerbsRecvLane::Release() {
  if (!peeked_) return ReleaseError(end_->spec);
  peeked_ = false;
  ++end_->released;
  ++counters_->credits;
  peer_->Owe(end_);
  return Status::Ok();
}

}  // namespace inccl::verbs
