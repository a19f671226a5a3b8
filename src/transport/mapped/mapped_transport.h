// SPDX-License-Identifier: Apache-2.0
//
// A transport over arenas, the common base of loopback and shm. The ends of a lane find each other
// without messages: each side announces its end in the directory of its own arena and looks up the
// other end when it needs it.
//
// One thread at a time, except for wakeup_event()->Signal(). Lanes are destroyed before their
// transport.
#ifndef INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_
#define INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "transport/emulated/emulated.h"
#include "transport/mapped/arena.h"
#include "transport/mapped/wakeup.h"
#include "transport/transport.h"

namespace inccl::mapped {

// The lane protocol over memory that the producer writes and the consumers read (arena.h).
//
// Memory order: the producer writes payload and header, then stores seq; the consumer loads seq,
// then reads. The consumer reads, then stores its number of releases; the producer loads it, then
// writes the header and the slot again. These stores and loads are sequentially consistent: release
// and acquire order the data, and the total order makes the wakeup event safe (wakeup.h).

// The regions that this rank and one peer have imported from each other.
class SharedRegions {
 public:
  virtual ~SharedRegions() = default;
  // True if the peer has imported this rank's region.
  virtual bool ReachableFrom(uint32_t region) const = 0;
  // False if the peer has invalidated its region.
  virtual bool Counts(uint32_t region) const = 0;
  // True if this rank has mapped the peer's region and may write to it.
  virtual bool IsWritable(uint32_t region) const = 0;
  // Address within the peer's region; nullptr if the region is not mapped here or is too small.
  virtual std::byte* At(const RemoteAddress& place, size_t bytes) const = 0;
  // From Hold to Drop a slice refers to the peer's region, and the region stays mapped.
  virtual void Hold(uint32_t region) = 0;
  virtual void Drop(uint32_t region) = 0;
};

// What a lane needs to know about a peer. All pointers outlive the lane.
struct Peer {
  int rank = -1;
  int event_fd = -1;  // -1: the peer never sleeps on one
  ArenaView* view = nullptr;
  WakeupArea* wakeup = nullptr;
  SharedRegions* regions = nullptr;  // nullptr: none
};

class MappedSendLane final : public emulated::StampedSendLane {
 public:
  // `headers` is zeroed memory of the arena, which is this rank's. peers[i] is spec.consumers[i].
  MappedSendLane(LaneSpec spec, SlotHeader* headers, Arena* arena, const std::vector<Peer>& peers,
                 FutexScope scope, TransportCounters* counters);
  // Makes this many slots now, one after the other. Further ones are made when slices need them.
  Status MakeSlots(uint32_t slots);

  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override;
  bool ReachableFrom(uint32_t region) const override;
  Result<bool> Drained() override;
  void AppendHolders(bool everything, std::vector<int>* ranks) const override;
  Status PublishStamped(const SliceHeader& header, Time departure) override;
  Time CreditDeparture() const override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  struct Consumer {
    Peer peer;
    const CreditBlock* credit = nullptr;  // nullptr: the peer has not opened its end yet
    uint32_t looked = UINT32_MAX;         // entries() at the last search for it
    uint64_t released = 0;                // the last value seen
  };
  // Sets *slot to the slot of the next slice, which consumers do not read any more; false if there
  // is none.
  Result<bool> TakeSlot(uint64_t* slot);
  // Makes the slots free that every consumer has released.
  Status CollectReleased();
  Status Refresh(Consumer* consumer);

  LaneSpec spec_;
  uint64_t key_;
  SlotHeader* headers_;
  Arena* arena_;
  std::vector<Consumer> consumers_;
  FutexScope scope_;
  TransportCounters* counters_;
  uint64_t ticket_ = 0;    // number of the next slice
  uint32_t index_ = 0;     // ticket_ % depth
  uint64_t released_ = 0;  // slices with lower numbers have been released by all consumers
  uint32_t made_ = 0;      // slots
  uint32_t most_;          // slots: the depth, or those for which there was memory
  // Offsets of slots in the arena. The slot that was released last is still in the caches, so it is
  // taken first.
  std::vector<uint64_t> free_;
  std::vector<uint64_t> used_;  // by ticket % depth, of the slices that are not released
  uint64_t slot_ = 0;           // acquired; 0: none
};

class MappedRecvLane final : public emulated::StampedRecvLane {
 public:
  // `credit` is zeroed memory of this rank's arena.
  MappedRecvLane(LaneSpec spec, CreditBlock* credit, const Peer& producer, FutexScope scope,
                 TransportCounters* counters);
  ~MappedRecvLane() override { DropRegions(); }

  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override;
  Status ReleaseStamped(Time departure) override;
  Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) override;
  const LaneSpec& spec() const override { return spec_; }

 private:
  friend struct LaneTestAccess;
  // True once the producer's headers are known.
  Result<bool> Wire();
  // Sets payload and target of the next slice from its header.
  Status Locate(uint64_t slot, Incoming* incoming) const;
  // Count the peeked slice as a user of the producer's regions, from the peek to its release.
  void HoldRegions();
  void DropRegions();
  // Copies header `index`, of slice `ticket`; false if the slice has not arrived. *slot: the offset
  // of its payload in the arena, if that is not in a region.
  Result<bool> ReadHeader(uint64_t ticket, uint32_t index, SliceHeader* header,
                          uint64_t* slot) const;

  LaneSpec spec_;
  uint64_t key_;
  CreditBlock* credit_;
  Peer producer_;
  FutexScope scope_;
  TransportCounters* counters_;
  const SlotHeader* headers_ = nullptr;
  uint32_t looked_ = UINT32_MAX;  // entries() of the producer at the last search for its headers
  uint64_t ticket_ = 0;           // number of the next slice
  uint32_t index_ = 0;            // ticket_ % depth
  bool peeked_ = false;
  Incoming incoming_;
};

class MappedTransport : public Transport {
 public:
  // `name` is a string constant. `wakeup` outlives the transport. A lane
  // makes `slots_at_opening` of its slots when it opens, and the others when slices need them.
  MappedTransport(const char* name, int rank, int nranks, std::unique_ptr<Arena> arena,
                  WakeupArea* wakeup, FutexScope scope, uint32_t max_slot_bytes,
                  uint32_t slots_at_opening);

  Caps caps() const override {
    return {.name = name_,
            .timed = false,
            .slot_memory = arena_->data_bytes(),
            .shared_slots = true,
            .deep_lanes = true};  // between hosts it has none
  }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.multicast = true, .read_in_place = true, .max_slot_bytes = max_slot_bytes_};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time) override { return 0; }
  WakeupEvent* wakeup_event() override { return &wakeup_event_; }
  void Quiesce(Time) override {}  // peers access only the arena
  uint64_t memory_bytes() const override { return arena_->memory_bytes(); }
  TransportCounters counters() const override { return counters_; }

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }

 protected:
  // Transport::SlotMemory for a transport that has its own mapping of every arena.
  void AppendSlotMemory(std::vector<Span>* spans) const;
  bool HasPeer(int peer) const { return views_[static_cast<size_t>(peer)] != nullptr; }
  // Called once per peer. `wakeup` and the memory that `view` reads outlive the transport.
  void SetPeer(int peer, std::unique_ptr<ArenaView> view, WakeupArea* wakeup,
               SharedRegions* regions = nullptr, int event_fd = -1);
  // Called before lanes are opened: no rank sleeps on an eventfd.
  void ForgetEventFds() { event_fds_.assign(event_fds_.size(), -1); }
  Arena* arena() const { return arena_.get(); }

 private:
  Result<Peer> FindPeer(const LaneSpec& spec, int peer) const;

  const char* name_;
  int rank_;
  int nranks_;
  uint32_t max_slot_bytes_;
  uint32_t slots_at_opening_;
  std::unique_ptr<Arena> arena_;
  FutexScope scope_;
  FutexWakeupEvent wakeup_event_;
  TransportCounters counters_;
  std::vector<std::unique_ptr<ArenaView>> views_;  // by rank; own and unknown ones are nullptr
  std::vector<WakeupArea*> wakeups_;
  std::vector<int> event_fds_;
  std::vector<SharedRegions*> regions_;
  std::unordered_set<uint64_t> opened_send_;  // keys
  std::unordered_set<uint64_t> opened_recv_;
};

}  // namespace inccl::mapped

#endif  // INCCL_TRANSPORT_MAPPED_MAPPED_TRANSPORT_H_
