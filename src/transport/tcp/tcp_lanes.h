// SPDX-License-Identifier: Apache-2.0
//
// The ends of lanes over TCP. An end belongs to the connections with its peer, which keep it as
// long as frames may arrive for it; SendLane and RecvLane are views of it.
#ifndef INCCL_TRANSPORT_TCP_TCP_LANES_H_
#define INCCL_TRANSPORT_TCP_TCP_LANES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/tcp/tcp_frame.h"
#include "transport/transport.h"

namespace inccl::tcp {

class PeerLanes;
class PeerLink;

// The slots of one end: depth times {FrameHeader, payload}. A slice takes the first free slot, so a
// lane touches the memory of only as many as are in use at a time.
struct Slots {
  static Result<Slots> Create(int rank, const LaneSpec& spec);
  // The first free slot; depth if there is none.
  size_t FirstFree() const {
    return static_cast<size_t>(std::find(taken.get(), taken.get() + depth, false) - taken.get());
  }
  std::byte* frame(size_t slot) const { return memory.data() + slot * stride; }
  std::byte* payload(size_t slot) const { return frame(slot) + sizeof(FrameHeader); }

  Mapping memory;
  size_t stride = 0;
  uint16_t depth = 1;
  std::unique_ptr<bool[]> taken;  // NOLINT(modernize-avoid-c-arrays): by slot
};

struct SendEnd {
  LaneSpec spec;
  Slots slots;             // taken: a connection still reads it
  uint32_t lane = 0;       // the consumer's number of the lane; 0: not granted yet
  uint64_t published = 0;  // slices
  uint64_t allowed = 0;    // slices that the consumer has slots for
};

struct RecvEnd {
  static constexpr uint16_t kNoSlot = UINT16_MAX;
  // A slice that is not released: where it is or will be.
  struct Slice {
    uint16_t slot = kNoSlot;
    bool complete = false;
  };
  Slice& at(uint64_t slice) { return slices[slice % slices.size()]; }

  LaneSpec spec;
  Slots slots;
  std::vector<Slice> slices;  // a ring of `depth`
  uint32_t lane = 0;          // this rank's number of the lane
  // Slices before `arrived` are complete; later ones may be, if there are several connections.
  uint64_t arrived = 0, released = 0;
  uint64_t announced = 0;  // the last credit that was sent, less depth
  bool owes = false;       // PeerLanes knows that released > announced
};

class TcpSendLane final : public SendLane {
 public:
  // All outlive the lane.
  TcpSendLane(SendEnd* end, PeerLanes* lanes, const PeerLink* link, TransportCounters* counters)
      : end_(end), lanes_(lanes), link_(link), counters_(counters) {}
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  bool SendsFrom(const std::byte* data, size_t bytes, bool on_device) const override;
  Status PublishFrom(const SliceHeader& header, const std::byte* data, bool on_device) override;
  Result<bool> Drained() override;
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  SendEnd* const end_;
  PeerLanes* const lanes_;
  const PeerLink* const link_;
  TransportCounters* const counters_;
  bool acquired_ = false;
  size_t slot_ = 0;  // if acquired
};

class TcpRecvLane final : public RecvLane {
 public:
  TcpRecvLane(RecvEnd* end, PeerLanes* lanes, const PeerLink* link, TransportCounters* counters)
      : end_(end), lanes_(lanes), link_(link), counters_(counters) {}
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  const LaneSpec& spec() const override { return end_->spec; }

 private:
  RecvEnd* const end_;
  PeerLanes* const lanes_;
  const PeerLink* const link_;
  TransportCounters* const counters_;
  bool peeked_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_LANES_H_
