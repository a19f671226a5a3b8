// SPDX-License-Identifier: Apache-2.0
//
// Implementation of emulated.h.
//
// Time stands still within one polling round: lanes show what is visible at the `now` of the last
// Progress, and NextEvent is the first event after it. So a sleep that follows a round misses no
// event that the round has not shown.
#ifndef INCCL_TRANSPORT_EMULATED_LINK_TRANSPORT_H_
#define INCCL_TRANSPORT_EMULATED_LINK_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "transport/emulated/emulated.h"
#include "transport/transport.h"

namespace inccl::emulated {

// The two directions of a link: servers of a fixed rate. The egress port reserves time ahead, the
// ingress port assigns it afterwards. Both count time in 1/1024 ns since an epoch (enough for 104
// days), so a few bytes are not rounded to whole nanoseconds; returned times are rounded up.
class PortClock {
 public:
  PortClock(double gbps, Time epoch);
  int64_t Cost(uint64_t bytes) const;
  int64_t FromTime(Time time) const { return (time - epoch_) * kUnits; }
  Time ToTime(int64_t units) const { return epoch_ + (units + kUnits - 1) / kUnits; }

 private:
  static constexpr int64_t kUnits = 1024;
  double units_per_byte_;
  Time epoch_;
};

// Towards the network: first in, first out.
class EgressPort {
 public:
  EgressPort(double gbps, Time epoch) : clock_(gbps, epoch) {}
  // Sends `bytes` after all earlier reservations and not before `now`. Returns when the last byte
  // is out.
  Time Reserve(Time now, uint64_t bytes);
  // Sends a few bytes immediately, which delays later reservations by the same time.
  Time ReserveFirst(Time now, uint64_t bytes);

 private:
  PortClock clock_;
  int64_t free_ = 0;
};

// From the network: the slice whose last byte arrives first passes first. Bytes that arrive while
// the port is idle pass at once, even if the rest of their slice is still to come.
class IngressPort {
 public:
  IngressPort(double gbps, Time epoch);
  // A slice of `bytes` arrives at the link's rate, its last byte at `arrival`. Returns when it has
  // passed the port. The caller calls it in order of arrival.
  Time Admit(Time arrival, uint64_t bytes);
  // What Admit would return now; slices admitted before it can only delay it.
  Time Earliest(Time arrival, uint64_t bytes) const;

 private:
  struct Interval {
    int64_t begin, end;
  };
  // The end of a slice that takes all free time from the arrival of its first byte on.
  int64_t Finish(int64_t begin, int64_t cost) const;

  PortClock clock_;
  std::vector<Interval> busy_;  // in order, with gaps between them; the oldest are dropped
};

class LinkTransport;

class LinkSendLane final : public SendLane {
 public:
  LinkSendLane(LinkTransport* link, std::unique_ptr<StampedSendLane> inner);
  ~LinkSendLane() override;
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  void AppendHolders(bool everything, std::vector<int>* ranks) const override {
    inner_->AppendHolders(everything, ranks);
  }
  const LaneSpec& spec() const override { return inner_->spec(); }

  // When the slot that TryAcquire withheld becomes free; 0 if it waits for a consumer.
  Time blocked_until() const { return blocked_until_; }

 private:
  LinkTransport* link_;
  std::unique_ptr<StampedSendLane> inner_;
  bool acquired_ = false;
  Time blocked_until_ = 0;
};

class LinkRecvLane final : public RecvLane {
 public:
  LinkRecvLane(LinkTransport* link, std::unique_ptr<StampedRecvLane> inner);
  ~LinkRecvLane() override;
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  const LaneSpec& spec() const override { return inner_->spec(); }

  // Looks for the first slice that has not passed the port yet.
  Status Look();
  bool waiting() const { return waiting_; }
  Time arrival() const { return arrival_; }
  uint64_t wire_bytes() const { return wire_bytes_; }
  // Marks that slice as visible from `visible` on.
  void Admit(Time visible);
  // When the lane's next slice becomes visible; 0 if no slice is known.
  Time NextVisible() const;

 private:
  friend struct LinkTestAccess;

  LinkTransport* link_;
  std::unique_ptr<StampedRecvLane> inner_;
  bool peeked_ = false;
  // Times of the slices that have passed the port and are not released: a ring buffer.
  std::vector<Time> visible_;
  uint32_t head_ = 0;
  uint32_t admitted_ = 0;
  // The slice behind them, valid if waiting_.
  bool waiting_ = false;
  Time arrival_ = 0;
  uint64_t wire_bytes_ = 0;
};

class LinkTransport final : public Transport {
 public:
  LinkTransport(std::unique_ptr<Transport> inner, const LinkOptions& options);
  Caps caps() const override;
  LaneCaps CapsFor(int producer, std::span<const int> consumers) const override;
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time now) override;
  void SlotMemory(std::vector<Span>* spans) const override { inner_->SlotMemory(spans); }
  bool unsent() const override { return inner_->unsent(); }
  void AppendUnsent(std::vector<int>* ranks) const override { inner_->AppendUnsent(ranks); }
  void DropUnsent() override { inner_->DropUnsent(); }
  WakeupEvent* wakeup_event() override { return inner_->wakeup_event(); }
  bool delivered() const override { return inner_->delivered(); }
  void Quiesce(Time deadline) override { inner_->Quiesce(deadline); }
  uint64_t memory_bytes() const override { return inner_->memory_bytes(); }
  TransportCounters counters() const override { return inner_->counters(); }
  Time NextEvent() const;

 private:
  friend class LinkSendLane;
  friend class LinkRecvLane;

  // Opens a lane of inner_ and puts it on the link.
  template <typename Lane>
  using OpenFn = Result<std::unique_ptr<Lane>> (Transport::*)(const LaneSpec&);
  template <typename LinkLane, typename Stamped, typename Lane>
  Result<std::unique_ptr<Lane>> Open(OpenFn<Lane> open, const LaneSpec& spec);

  const Clock* clock_;
  Time latency_;
  Time now_;  // time of the last Progress
  EgressPort egress_;
  IngressPort ingress_;
  std::unique_ptr<Transport> inner_;
  std::vector<LinkSendLane*> send_;  // lanes that exist; each removes itself
  std::vector<LinkRecvLane*> recv_;
};

}  // namespace inccl::emulated

#endif  // INCCL_TRANSPORT_EMULATED_LINK_TRANSPORT_H_
