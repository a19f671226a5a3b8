// SPDX-License-Identifier: Apache-2.0
//
// The ends of lanes over TCP. An end belongs to its connection, which keeps it as long as frames
// may arrive for it; SendLane and RecvLane are views of it.
#ifndef INCCL_TRANSPORT_TCP_TCP_LANES_H_
#define INCCL_TRANSPORT_TCP_TCP_LANES_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "transport/tcp/tcp_frame.h"
#include "transport/transport.h"

namespace inccl::tcp {

class ConnectionLanes;
class PeerLink;

// The slots of one end: depth times {FrameHeader, payload}.
struct Slots {
  static Result<Slots> Create(int rank, const LaneSpec& spec);
  std::byte* frame(uint64_t slice) const { return memory.data() + slice % depth * stride; }
  std::byte* payload(uint64_t slice) const { return frame(slice) + sizeof(FrameHeader); }

  Mapping memory;
  size_t stride = 0;
  uint16_t depth = 1;
};

struct SendEnd {
  LaneSpec spec;
  Slots slots;
  uint32_t lane = 0;       // the consumer's number of the lane; 0: not granted yet
  uint64_t published = 0;  // slices
  uint64_t allowed = 0;    // slices that the consumer has slots for
  std::unique_ptr<bool[]>
      in_flight;  // NOLINT(modernize-avoid-c-arrays): per slot: the connection still reads it
};

struct RecvEnd {
  LaneSpec spec;
  Slots slots;
  uint32_t lane = 0;  // this rank's number of the lane
  uint64_t arrived = 0, released = 0;
  uint64_t announced = 0;  // the last credit that was sent, less depth
  bool owes = false;       // ConnectionLanes knows that released > announced
};

class TcpSendLane final : public SendLane {
 public:
  // All outlive the lane.
  TcpSendLane(SendEnd* end, ConnectionLanes* lanes, const PeerLink* link,
              TransportCounters* counters)
      : end_(end), lanes_(lanes), link_(link), counters_(counters) {}
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  bool SendsFrom(const std::byte* data, size_t bytes, bool on_device) const override;
  Status PublishFrom(const SliceHeader& header, const std::byte* data, bool on_device) override;
  Result<bool> Drained() override;
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  // Fills in the frame's header in the slot; *in_flight is the slot's.
  Status Prepare(const SliceHeader& header, std::byte** slot, bool** in_flight);

  SendEnd* const end_;
  ConnectionLanes* const lanes_;
  const PeerLink* const link_;
  TransportCounters* const counters_;
  bool acquired_ = false;
};

class TcpRecvLane final : public RecvLane {
 public:
  TcpRecvLane(RecvEnd* end, ConnectionLanes* lanes, const PeerLink* link,
              TransportCounters* counters)
      : end_(end), lanes_(lanes), link_(link), counters_(counters) {}
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  RecvEnd* const end_;
  ConnectionLanes* const lanes_;
  const PeerLink* const link_;
  TransportCounters* const counters_;
  bool peeked_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_LANES_H_
