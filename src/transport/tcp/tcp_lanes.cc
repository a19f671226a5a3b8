// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_lanes.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "transport/lane_check.h"
#include "transport/tcp/tcp_peer.h"

namespace inccl::tcp {

Result<Slots> Slots::Create(int rank, const LaneSpec& spec) {
  constexpr size_t kPage = 4096, kLine = 64;
  Slots slots;
  const size_t frame = sizeof(FrameHeader) + spec.slot_bytes;
  const size_t unit = frame >= kPage ? kPage : kLine;
  slots.stride = (frame + unit - 1) / unit * unit;
  slots.depth = spec.depth;
  const size_t bytes = slots.stride * spec.depth;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(
        fmt::format("rank {}: {}: mmap of {} bytes", rank, Describe(spec), bytes), errno);
  }
  slots.memory = Mapping(data, bytes);
  slots.taken = std::make_unique<bool[]>(spec.depth);  // NOLINT(modernize-avoid-c-arrays)
  return slots;
}

Result<Span> TcpSendLane::TryAcquire() {
  if (!acquired_) {
    const size_t slot =
        end_->published < end_->allowed ? end_->slots.FirstFree() : end_->slots.depth;
    if (slot == end_->slots.depth) {
      if (Status status = link_->Lost(); !status.ok()) return status;
      return Span{};
    }
    slot_ = slot;
    acquired_ = true;
  }
  return Span{end_->slots.payload(slot_), end_->spec.slot_bytes};
}

Status TcpSendLane::Publish(const SliceHeader& header) {
  return PublishFrom(header, end_->slots.payload(slot_), false);
}

// An encrypted payload needs a place of its own, and a small one is copied faster than it takes a
// part of a system call.
bool TcpSendLane::SendsFrom(const std::byte* /*data*/, size_t bytes, bool on_device) const {
  constexpr size_t kLeastInPlace = 16 * 1024;
  return bytes >= kLeastInPlace && !on_device && !lanes_->encrypts();
}

Status TcpSendLane::PublishFrom(const SliceHeader& header, const std::byte* data,
                                bool /*on_device*/) {
  if (Status status = CheckPublish(end_->spec, acquired_, header); !status.ok()) return status;
  if (Status status = link_->Lost(); !status.ok()) return status;
  OutFrame* const frame = lanes_->Queue();
  frame->header = reinterpret_cast<FrameHeader*>(end_->slots.frame(slot_));
  frame->payload = data;
  frame->in_flight = &end_->slots.taken[slot_];
  *frame->in_flight = true;
  acquired_ = false;
  ++end_->published;
  *frame->header = {.kind = FrameKind::kSlice,
                    .lane = end_->lane,
                    .bytes = header.bytes,
                    .slice = header.slice,
                    .signature = header.signature,
                    .seq = end_->published};
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  lanes_->Flush();
  return Status::Ok();
}

Result<bool> TcpSendLane::Drained() {
  if (end_->allowed == end_->published + end_->spec.depth || end_->published == 0) return true;
  if (Status status = link_->Lost(); !status.ok()) return status;
  return false;
}

Result<bool> TcpRecvLane::TryPeek(Incoming* incoming) {
  if (end_->arrived == end_->released) {
    if (Status status = link_->Lost(); !status.ok()) return status;
    return false;
  }
  const size_t slot = end_->at(end_->released).slot;
  const auto* const frame = reinterpret_cast<const FrameHeader*>(end_->slots.frame(slot));
  incoming->header = {.bytes = frame->bytes, .slice = frame->slice, .signature = frame->signature};
  incoming->payload = end_->slots.payload(slot);
  incoming->target = nullptr;
  peeked_ = true;
  return true;
}

Status TcpRecvLane::Release() {
  if (!peeked_) return ReleaseError(end_->spec);
  peeked_ = false;
  RecvEnd::Slice& slice = end_->at(end_->released);
  end_->slots.taken[slice.slot] = false;
  slice = {};
  ++end_->released;
  ++counters_->credits;
  lanes_->Owe(end_);
  return Status::Ok();
}

}  // namespace inccl::tcp
