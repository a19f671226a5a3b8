// SPDX-License-Identifier: Apache-2.0
//
// The lane protocol over memory that the producer writes and the consumers read (layout.h).
//
// Order of accesses: the producer writes payload and header, then stores seq; the consumer loads
// seq, then reads. The consumer reads, then stores its count of releases; the producer loads it,
// then writes the slot again. These stores and loads are sequentially consistent: as release and
// acquire they order the data, and their total order is what makes the wakeup_event safe
// (wakeup.h).
#ifndef INCCL_TRANSPORT_MAPPED_LANES_H_
#define INCCL_TRANSPORT_MAPPED_LANES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/mapped/arena.h"
#include "transport/mapped/wakeup.h"
#include "transport/transport.h"

namespace inccl::mapped {

// Regions of this rank and of one peer, as far as each has mapped the other's.
class SharedRegions {
 public:
  virtual ~SharedRegions() = default;
  // True: the peer has mapped this rank's region.
  virtual bool ReachableFrom(uint32_t region) const = 0;
  // False: the peer has withdrawn its region.
  virtual bool Counts(uint32_t region) const = 0;
  // True: the peer's region is mapped here, and to be written.
  virtual bool IsWritable(uint32_t region) const = 0;
  // Memory of the peer's region; nullptr if it is not mapped here or not that large.
  virtual std::byte* At(const RemoteAddress& place, size_t bytes) const = 0;
  // A slice refers to the peer's region from Hold to Drop, and the region stays mapped.
  virtual void Hold(uint32_t region) = 0;
  virtual void Drop(uint32_t region) = 0;
};

// What a lane needs to know of a peer; it outlives the lane.
struct Peer {
  int rank = -1;
  ArenaView* view = nullptr;
  WakeupArea* wakeup = nullptr;
  SharedRegions* regions = nullptr;  // nullptr: none
};

class MappedSendLane final : public SendLane {
 public:
  // `slots`: of this rank's arena, zeroed. peers[i] is spec.consumers[i].
  MappedSendLane(LaneSpec spec, std::byte* slots, const std::vector<Peer>& peers, FutexScope scope,
                 TransportCounters* counters);

  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  bool ReachableFrom(uint32_t region) const override;
  Result<bool> Drained() override;
  void AppendHolders(bool everything, std::vector<int>* ranks) const override;
  Time CreditDeparture() const override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  struct Consumer {
    Peer peer;
    const CreditBlock* credit = nullptr;  // nullptr: the peer has not opened its end yet
    uint32_t looked = UINT32_MAX;         // entries at the last look for it
    uint64_t released = 0;                // as seen last
  };
  // True if every consumer has released what was in the next slot.
  Result<bool> HasCredit();
  Status Refresh(Consumer* consumer);
  std::byte* slot() const { return slots_ + index_ * stride_; }

  LaneSpec spec_;
  uint64_t key_;
  std::byte* slots_;
  size_t stride_;
  std::vector<Consumer> consumers_;
  FutexScope scope_;
  TransportCounters* counters_;
  uint64_t ticket_ = 0;      // of the next slice
  uint32_t index_ = 0;       // ticket_ % depth
  uint64_t free_until_ = 0;  // tickets below it have a free slot
  bool acquired_ = false;
};

class MappedRecvLane final : public RecvLane {
 public:
  // `credit`: of this rank's arena, zeroed.
  MappedRecvLane(LaneSpec spec, CreditBlock* credit, const Peer& producer, FutexScope scope,
                 TransportCounters* counters);
  ~MappedRecvLane() override { DropRegions(); }

  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  Status ReleaseStamped(Time departure) override;
  Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header) override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  // True once the producer's slots are known.
  Result<bool> Wire();
  // Where header and payload of the slice that is due lie.
  Status Locate(Incoming* incoming) const;
  // The peeked slice refers to regions of the producer from the peek to its release.
  void HoldRegions();
  void DropRegions();
  // Copies the header of slice `ticket` out of slot `index`; false if it is not there.
  Result<bool> ReadHeader(uint64_t ticket, uint32_t index, SliceHeader* header) const;

  LaneSpec spec_;
  uint64_t key_;
  CreditBlock* credit_;
  Peer producer_;
  FutexScope scope_;
  TransportCounters* counters_;
  const std::byte* slots_ = nullptr;
  uint32_t looked_ = UINT32_MAX;  // entries of the producer at the last look for its slots
  size_t stride_;
  uint64_t ticket_ = 0;  // of the next slice
  uint32_t index_ = 0;   // ticket_ % depth
  bool peeked_ = false;
  Incoming incoming_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_LANES_H_
