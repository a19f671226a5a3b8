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
  return slots;
}

Result<Span> TcpSendLane::TryAcquire() {
  if (!acquired_) {
    const bool free =
        end_->published < end_->allowed && !end_->in_flight[end_->published % end_->spec.depth];
    if (!free) {
      if (Status status = link_->Lost(); !status.ok()) return status;
      return Span{};
    }
    acquired_ = true;
  }
  return Span{end_->slots.payload(end_->published), end_->spec.slot_bytes};
}

Status TcpSendLane::Prepare(const SliceHeader& header, std::byte** slot, bool** in_flight) {
  if (Status status = CheckPublish(end_->spec, acquired_, header); !status.ok()) return status;
  if (Status status = link_->Lost(); !status.ok()) return status;
  *slot = end_->slots.frame(end_->published);
  FrameHeader frame;
  frame.kind = FrameKind::kSlice;
  frame.lane = end_->lane;
  frame.bytes = header.bytes;
  frame.slice = header.slice;
  frame.signature = header.signature;
  frame.seq = end_->published + 1;
  lanes_->AddCredit(&frame);
  *reinterpret_cast<FrameHeader*>(*slot) = frame;
  *in_flight = &end_->in_flight[end_->published % end_->spec.depth];
  acquired_ = false;
  ++end_->published;
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  return Status::Ok();
}

Status TcpSendLane::Publish(const SliceHeader& header) {
  std::byte* slot = nullptr;
  bool* in_flight = nullptr;
  if (Status status = Prepare(header, &slot, &in_flight); !status.ok()) return status;
  return lanes_->connection()->Send(slot, in_flight);
}

// An encrypted payload needs a place of its own, and a small one is copied faster than it takes a
// part of a system call.
bool TcpSendLane::SendsFrom(const std::byte* /*data*/, size_t bytes, bool on_device) const {
  constexpr size_t kLeastInPlace = 16 * 1024;
  return bytes >= kLeastInPlace && !on_device && !lanes_->connection()->encrypts();
}

Status TcpSendLane::PublishFrom(const SliceHeader& header, const std::byte* data,
                                bool /*on_device*/) {
  std::byte* slot = nullptr;
  bool* in_flight = nullptr;
  if (Status status = Prepare(header, &slot, &in_flight); !status.ok()) return status;
  return lanes_->connection()->SendFrom(slot, data, in_flight);
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
  const auto* const frame = reinterpret_cast<const FrameHeader*>(end_->slots.frame(end_->released));
  incoming->header = {.bytes = frame->bytes, .slice = frame->slice, .signature = frame->signature};
  incoming->payload = end_->slots.payload(end_->released);
  incoming->target = nullptr;
  peeked_ = true;
  return true;
}

Status TcpRecvLane::Release() {
  if (!peeked_) return ReleaseError(end_->spec);
  peeked_ = false;
  ++end_->released;
  ++counters_->credits;
  lanes_->Owe(end_);
  return Status::Ok();
}

}  // namespace inccl::tcp
