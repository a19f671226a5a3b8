// SPDX-License-Identifier: Apache-2.0
//
// The ends of lanes over RDMA. An end belongs to its peer's Peer, which keeps it as long as the
// device may use its memory; SendLane and RecvLane are views of it.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_LANES_H_
#define INCCL_TRANSPORT_VERBS_VERBS_LANES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_device.h"

namespace inccl::verbs {

class Peer;

using tcp::FrameHeader;

// The slots of one end, depth times {FrameHeader, payload}: of its own memory, or a part of the
// memory of all inboxes.
struct Slots {
  static Result<Slots> Create(const Device& device, const LaneSpec& spec, Writer writer);
  std::byte* frame(uint64_t slice) const { return base + slice % depth * stride; }
  std::byte* payload(uint64_t slice) const { return frame(slice) + sizeof(FrameHeader); }

  RegisteredMemory memory;
  std::byte* base = nullptr;
  uint32_t stride = 0;
  uint32_t local_key = 0, remote_key = 0;
  uint16_t depth = 1;
};

struct SendEnd {
  // What is under way in a slot.
  struct Slot {
    uint64_t request = 0;                            // the number of the work request that reads it
    const std::byte* from = nullptr;                 // where the payload lies, if not in the slot
    static constexpr uint64_t kQueued = UINT64_MAX;  // not posted yet
  };

  LaneSpec spec;
  Slots slots;
  uint16_t lane = 0;    // the consumer's number of the lane
  uint64_t remote = 0;  // address of the consumer's slot 0
  uint32_t remote_key = 0, remote_stride = 0;
  uint64_t published = 0;  // slices
  uint64_t allowed = 0;    // slices that the consumer has slots for
  std::vector<Slot> under_way;
};

struct RecvEnd {
  LaneSpec spec;
  Slots slots;
  uint16_t lane = 0;  // this rank's number of the lane
  uint64_t arrived = 0, released = 0;
  uint64_t announced = 0;  // the last credit that was sent, less depth
  bool owes = false;       // Peer knows that released > announced
  // Per slot: the header as it was when the slice arrived and was checked. The producer can still
  // write to the slot.
  std::vector<FrameHeader> headers;
};

class VerbsSendLane final : public SendLane {
 public:
  // All outlive the lane.
  VerbsSendLane(SendEnd* end, Peer* peer, const CallerMemory* memory, TransportCounters* counters)
      : end_(end), peer_(peer), memory_(memory), counters_(counters) {}
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override { return PublishFrom(header, nullptr, false); }
  bool SendsFrom(const std::byte* data, size_t bytes, bool on_device) const override;
  Status PublishFrom(const SliceHeader& header, const std::byte* data, bool on_device) override;
  bool marks_inputs() const override { return true; }
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  SendEnd* const end_;
  Peer* const peer_;
  const CallerMemory* const memory_;
  TransportCounters* const counters_;
  bool acquired_ = false;
};

class VerbsRecvLane final : public RecvLane {
 public:
  VerbsRecvLane(RecvEnd* end, Peer* peer, TransportCounters* counters)
      : end_(end), peer_(peer), counters_(counters) {}
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  RecvEnd* const end_;
  Peer* const peer_;
  TransportCounters* const counters_;
  bool peeked_ = false;
};

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_LANES_H_
