// SPDX-License-Identifier: Apache-2.0
//
// A lane of the simulator. Publish copies the payload from the producer's slot into a private slot
// per consumer. Memory that must not be read any more is overwritten with kPoison: the producer's
// slot after Publish, a consumer's slot after Release.
#ifndef INCCL_VERIFY_SIM_WORLD_H_
#define INCCL_VERIFY_SIM_WORLD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/emulated/emulated.h"
#include "transport/transport.h"

namespace inccl::sim {

inline constexpr std::byte kPoison{0xD5};

// 64-byte aligned memory, filled with kPoison.
class PoisonedBuffer {
 public:
  explicit PoisonedBuffer(size_t bytes);
  std::byte* data() const { return data_; }
  void Poison();

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_;
};

// The state of both ends, owned by the world. Counts are totals since the beginning.
struct SimLane {
  explicit SimLane(const LaneSpec& lane_spec);

  struct Consumer {
    int rank = -1;
    std::vector<PoisonedBuffer> slots;  // empty until this end opens or receives a slice
    std::vector<SliceHeader> headers;
    // Of slices and of releases, by slot.
    std::vector<Time> slice_stamps, credit_stamps;
    uint64_t visible = 0;   // slices the consumer can see
    uint64_t released = 0;  // slices it has released
    uint64_t credited = 0;  // releases the producer can see
    Time last_visible = 0;  // last scheduled times, which keep the order
    Time last_credited = 0;
    bool opened = false;
    bool cut = false;  // a slice was dropped, so no later one becomes visible
  };
  Consumer* Find(int rank);
  void NeedSlots(Consumer* consumer);
  uint64_t LeastCredited() const;

  LaneSpec spec;
  std::vector<Consumer> consumers;    // in the order of spec.consumers
  std::vector<PoisonedBuffer> slots;  // the producer's; empty until it opens its end
  uint64_t published = 0;
};

// Registered buffers in the simulator: any memory, each buffer a region. A peer imports a region
// after a random time, and the owner learns of that after another one. The peer keeps the region
// until another one replaces it; a revocation is visible at once, as in shared memory.
class SimRegions {
 public:
  static constexpr uint32_t kMostFound = 8, kMostKept = 8;
  static constexpr uint32_t kPlaces = kMostFound + kMostKept;
  // Runs an event of this rank later.
  using Later = std::function<void(int rank, std::function<void()> event)>;

  SimRegions(int nranks, Later later);

  // As the methods of Transport.
  Result<MemoryHandle> Register(int owner, std::span<const std::byte> memory,
                                const Registration& how);
  void Deregister(int owner, const MemoryHandle& memory);
  void RevokeAccess(int owner, const MemoryHandle& memory);
  // True if the owner knows that the peer has imported its region.
  bool ReachableFrom(int owner, uint32_t region, int peer) const;
  // False if the owner has revoked or replaced the region since the peer imported it.
  bool Counts(int owner, uint32_t region, int peer) const;
  // The address that the peer has for this place; nullptr if it has not imported the region, the
  // region is too small, or `to_write` is set and it is read-only.
  std::byte* At(int owner, const RemoteAddress& place, size_t bytes, bool to_write, int peer) const;
  // From Hold to Drop, a slice that the peer has peeked at refers to the region.
  void Hold(int owner, uint32_t region, int peer) { ++Known(owner, region, peer).users; }
  void Drop(int owner, uint32_t region, int peer) { --Known(owner, region, peer).users; }
  // A rank that replaced a region while `peer` held it; -1 if there is none.
  int offender(int peer) const { return offenders_[static_cast<size_t>(peer)]; }

 private:
  struct Place {  // the owner's view
    std::span<const std::byte> memory;
    uint64_t generation = 0;  // of this export; 0: none, or revoked
    uint64_t used = 0;
    uint32_t keepers = 0;  // registrations with `keep`
    bool writable = false;
    std::vector<uint64_t> answers;  // by rank: the last generation that it has confirmed
  };
  struct Knowledge {  // a peer's view
    uint64_t generation = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool writable = false;
    uint32_t users = 0;
  };
  using Places = std::array<Place, kPlaces>;

  static uint32_t FindPlace(const Places& places, bool keep);
  // Announces places_[owner][index] to the peers.
  void Post(int owner, uint32_t index);
  void Learn(int owner, uint32_t index, int peer, const Knowledge& news);
  Knowledge& Known(int owner, uint32_t region, int peer) {
    return known_[(static_cast<size_t>(peer) * places_.size() + static_cast<size_t>(owner)) *
                      kPlaces +
                  region - 1];
  }
  const Knowledge& Known(int owner, uint32_t region, int peer) const {
    return const_cast<SimRegions*>(this)->Known(owner, region, peer);
  }

  const Later later_;
  std::vector<Places> places_;    // by owner
  std::vector<Knowledge> known_;  // by peer, owner, place
  std::vector<int> offenders_;    // by peer
  uint64_t generations_ = 0, uses_ = 0;
};

}  // namespace inccl::sim

namespace inccl {

// The simulator: all ranks in one process, on one thread, in virtual time. The caller polls the
// ranks in any order and calls Step when no rank can continue; Step advances the time to the next
// event. The same seed and the same order of calls give the same run.
//
// The simulator randomizes when each slice becomes visible to each consumer and each credit to its
// producer (in order on one lane, in any order between lanes), when each peer notices a crash, and
// when each peer imports a region.
struct SimOptions {
  bool multicast = true;
  bool sends_from_caller = false;  // SendLane::SendsFrom; the payload is read when it arrives
  Time min_delay = kMicrosecond;   // delays are log-uniform between these
  Time max_delay = 200 * kMicrosecond;
  Time min_detection = kMillisecond;  // from a crash to each peer's error, uniform
  Time max_detection = 5 * kMillisecond;
};

class SimWorld {
 public:
  SimWorld(int nranks, uint64_t seed, const SimOptions& options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // The end of `rank`, owned by the world.
  Transport* transport(int rank);
  // Another handle of the end of `rank`, owned by the caller; the world outlives it.
  std::unique_ptr<Transport> NewTransport(int rank);

  int nranks() const { return nranks_; }
  const Clock& clock() const { return clock_; }
  Time now() const { return clock_.now; }

  // Advances to the next event and executes it: a slice or a credit becomes visible, a scheduled
  // function runs, or a peer notices a crash. Returns false if there are no more events.
  bool Step();
  // Executes all events up to `time` and sets the clock to it.
  void AdvanceTo(Time time);
  // Time of the next event; kNever if there is none.
  Time next_event() const { return events_.empty() ? kNever : events_.top().time; }

  // Runs `event` at a random later time, unless its `rank` crashes before.
  void Schedule(int rank, std::function<void()> event);

  // Stops a rank for good: slices and credits that no peer has seen yet are lost. After its
  // detection time each peer's Progress returns kRemoteError, naming the rank.
  void Crash(int rank);
  bool crashed(int rank) const { return ranks_[static_cast<size_t>(rank)].crashed; }

  // Number of slices whose payload lies in a region, and of slices that name a target.
  uint64_t references() const { return references_; }
  uint64_t targets() const { return targets_; }
  uint64_t deliveries() const { return deliveries_; }
  // Number of slices that were sent from memory of the caller.
  uint64_t sent_from_caller() const { return sent_from_caller_; }

 private:
  friend class SimTransport;
  friend class SimSendLane;
  friend class SimRecvLane;

  struct VirtualClock final : Clock {
    Time Now() const override { return now; }
    Time now = 1;
  };
  struct Event {
    Time time = 0;
    uint64_t tie = 0;  // random order of events with equal times
    int rank = 0;
    std::function<void()> run;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : tie > other.tie;
    }
  };
  struct Rank {
    bool crashed = false;
    int noticed = -1;  // a peer that has crashed
    uint64_t memory_bytes = 0;
    uint64_t unsent = 0;   // slices of PublishFrom, once per consumer
    bool dropped = false;  // DropUnsent has been called
    TransportCounters counters;
    std::unique_ptr<Transport> transport;
  };

  Time RandomDelay();
  void At(Time time, int rank, std::function<void()> run);
  sim::SimLane* Lane(const LaneSpec& spec);
  Rank& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  // Send a slice to `consumer`, or a credit back to the producer. With `payload`, in memory of the
  // caller, these `bytes` are copied to `slot` when the slice becomes visible.
  void Deliver(int producer, sim::SimLane::Consumer* consumer);
  void DeliverFrom(int producer, sim::SimLane::Consumer* consumer, const std::byte* payload,
                   std::byte* slot, size_t bytes);
  void ReturnCredit(sim::SimLane::Consumer* consumer);

  int nranks_;
  SimOptions options_;
  Rng rng_;
  VirtualClock clock_;
  std::vector<Rank> ranks_;
  sim::SimRegions regions_;
  uint64_t references_ = 0, targets_ = 0, deliveries_ = 0, sent_from_caller_ = 0;
  std::map<uint64_t, std::unique_ptr<sim::SimLane>> lanes_;  // by key
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

// One rank's end of a SimWorld, and its lanes.
class SimTransport final : public Transport, private Exports {
 public:
  SimTransport(SimWorld* world, int rank) : world_(world), rank_(rank) {}
  Caps caps() const override { return {.name = "sim"}; }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.multicast = world_->options_.multicast};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Exports* exports() override { return this; }
  Result<int> Progress(Time now) override;
  bool unsent() const override { return world_->state(rank_).unsent > 0; }
  void DropUnsent() override {
    world_->state(rank_).dropped = true;
    world_->state(rank_).unsent = 0;
  }
  WakeupEvent* wakeup_event() override { return nullptr; }
  void Quiesce(Time) override {}
  uint64_t memory_bytes() const override { return world_->state(rank_).memory_bytes; }
  TransportCounters counters() const override { return world_->state(rank_).counters; }

 private:
  // Exports
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override {
    return world_->regions_.Register(rank_, {static_cast<const std::byte*>(data), bytes}, how);
  }
  void Deregister(const MemoryHandle& memory) override {
    world_->regions_.Deregister(rank_, memory);
  }
  Status CanRegister(const void*, size_t, bool) const override { return Status::Ok(); }
  Status RevokeAccess(const MemoryHandle& memory) override {
    world_->regions_.RevokeAccess(rank_, memory);
    return Status::Ok();
  }

  SimWorld* world_;
  int rank_;
};

class SimSendLane final : public emulated::StampedSendLane {
 public:
  SimSendLane(SimWorld* world, sim::SimLane* lane) : world_(world), lane_(lane) {}
  Result<Span> TryAcquire() override;
  Status Publish(const SliceHeader& header) override { return PublishStamped(header, 0); }
  Status PublishStamped(const SliceHeader& header, Time departure) override {
    return Publish(header, departure, nullptr);
  }
  bool SendsFrom(const std::byte* /*data*/, size_t /*bytes*/, bool on_device) const override {
    return world_->options_.sends_from_caller && !on_device;
  }
  bool marks_inputs() const override { return true; }
  Status PublishFrom(const SliceHeader& header, const std::byte* data,
                     bool /*on_device*/) override {
    return Publish(header, 0, data);
  }
  bool ReachableFrom(uint32_t region) const override;
  Result<bool> Drained() override { return lane_->LeastCredited() == lane_->published; }
  Time CreditDeparture() const override;
  const LaneSpec& spec() const override { return lane_->spec; }

 private:
  // `payload`: nullptr if it is in the slot.
  Status Publish(const SliceHeader& header, Time departure, const std::byte* payload);
  size_t index() const { return lane_->published % lane_->spec.depth; }

  SimWorld* world_;
  sim::SimLane* lane_;
  bool acquired_ = false;
};

class SimRecvLane final : public emulated::StampedRecvLane {
 public:
  SimRecvLane(SimWorld* world, sim::SimLane* lane, sim::SimLane::Consumer* self)
      : world_(world), lane_(lane), self_(self) {}
  ~SimRecvLane() override { DropRegions(); }
  Result<bool> TryPeek(Incoming* incoming) override;
  Status Release() override { return ReleaseStamped(0); }
  Status ReleaseStamped(Time departure) override;
  Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) override;
  const LaneSpec& spec() const override { return lane_->spec; }

 private:
  size_t index() const { return self_->released % lane_->spec.depth; }
  // Sets payload and target of the next slice from its header.
  Status Locate(Incoming* incoming);
  void DropRegions();

  SimWorld* world_;
  sim::SimLane* lane_;
  sim::SimLane::Consumer* self_;
  bool peeked_ = false;
};

}  // namespace inccl

#endif  // INCCL_VERIFY_SIM_WORLD_H_
