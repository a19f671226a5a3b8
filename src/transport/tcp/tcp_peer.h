// SPDX-License-Identifier: Apache-2.0
//
// The data connections with one peer, and the lanes that use them. Any connection carries any
// slice; their numbers restore the order of a lane.
#ifndef INCCL_TRANSPORT_TCP_TCP_PEER_H_
#define INCCL_TRANSPORT_TCP_TCP_PEER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/transport.h"

namespace inccl::tcp {

// The ends of lanes over TCP. An end belongs to the connections with its peer, which keep it as
// long as frames may arrive for it; SendLane and RecvLane are views of it.

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

class PeerLanes final : public FrameSink {
 public:
  // `name` begins the errors: "rank 0: tcp: peer 1@host:pid".
  PeerLanes(int rank, const std::string& name, Protection protection, int connections);

  // Connection number i. Lanes may be opened before it is made.
  Connection* connection(size_t i) { return connections_[i].get(); }
  std::span<const std::unique_ptr<Connection>> connections() const { return connections_; }
  bool encrypts() const { return connections_.front()->encrypts(); }
  Result<SendEnd*> OpenSend(const LaneSpec& spec);
  // Grants the producer its credit.
  Result<RecvEnd*> OpenRecv(const LaneSpec& spec);

  // A slice has been released, so its producer is owed a credit.
  void Owe(RecvEnd* end);
  // A new frame at the end of the queue of all connections. Flush sends what their sockets take.
  OutFrame* Queue() { return queue_.Append(); }
  void Flush();
  bool NextFrame(OutFrame* frame) override;
  // Sends the credits that are owed: all of them, or those of at least half a lane.
  Status SendCredits(bool all);
  // Frames, or credits that SendCredits(false) sends, or a connection that is not made although
  // this rank has opened a lane: its peer may need it for that lane.
  bool unsent() const;
  // A connection has failed with slices that were not sent.
  bool dropped_slices() const;
  void DropUnsent();
  // A connection has failed, so what waits for any of them is not sent.
  void DropQueue() { dropped_ = queue_.Drop() || dropped_; }
  // Closes the sockets.
  void Close();

  std::byte* PlaceOf(const FrameHeader& header, std::string* wrong) override;
  std::string Arrived(const FrameHeader& header) override;

 private:
  struct Grant {
    uint32_t slot_bytes = 0, depth = 0;
    SendEnd* end = nullptr;  // once this rank has opened it
  };

  // Its producer may soon lack credit.
  static bool OwesMuch(const RecvEnd& end) {
    return 2 * (end.released - end.announced) >= end.spec.depth;
  }
  // A connection is not made, and a lane needs it.
  bool awaited() const;
  // One connection keeps the order of frames.
  bool ordered() const { return connections_.size() == 1; }
  RecvEnd* Due(const FrameHeader& header, std::string* wrong) const;
  // The slot of a slice that has begun to arrive.
  static RecvEnd::Slice* Take(RecvEnd* end, uint64_t slice);
  std::string TakeGrant(const FrameHeader& header);
  std::string TakeCredit(const FrameHeader& header);
  // Joins the grant of this number and the end that this rank has opened. Returns what is wrong.
  std::string Join(size_t number, SendEnd* end);
  // Takes the credit of an owing end off the list and counts it as announced.
  uint64_t Announce(size_t index);

  const int rank_;
  const std::string name_;
  std::vector<std::unique_ptr<Connection>> connections_;
  FrameQueue queue_;      // of slices, which any connection takes
  bool dropped_ = false;  // slices of it
  std::vector<std::unique_ptr<SendEnd>> send_ends_;
  std::vector<std::unique_ptr<RecvEnd>> recv_ends_;   // by this rank's number - 1
  std::vector<Grant> grants_;                         // by the peer's number - 1
  std::unordered_map<uint64_t, size_t> number_of_;    // the peer's numbers, by lane key
  std::unordered_map<uint64_t, SendEnd*> ungranted_;  // by lane key
  std::vector<RecvEnd*> owing_;
};

class PeerLink {
 public:
  // `name` begins the errors, as that of PeerLanes.
  PeerLink(int rank, int peer, const std::string& name, Protection protection, int connections);

  PeerLanes* lanes() { return &lanes_; }
  Connection* connection(size_t i) { return lanes_.connection(i); }
  const std::string& name() const { return name_; }

  // Receives and sends what the sockets are ready for; returns the number of frames that arrived.
  Result<int> Progress(Time now);
  Status SendCredits(bool all) { return lanes_.SendCredits(all); }
  bool unsent() const;
  void DropUnsent() { lanes_.DropUnsent(); }
  bool acknowledged() const;
  bool readable() const;
  // kRemoteError, some time after a connection was lost, so that a more precise report from the
  // control connection can come first.
  Status Lost() const;
  void Close() { lanes_.Close(); }
  int peer() const { return peer_; }

 private:
  const int peer_;
  const std::string name_;
  PeerLanes lanes_;
  std::string failure_;
  Time failed_at_ = 0;
  bool lost_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_PEER_H_
