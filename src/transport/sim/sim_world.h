// SPDX-License-Identifier: Apache-2.0
//
// The simulator: all ranks in one process, on one thread, in virtual time. The caller polls the
// ranks in any order and calls Step when no rank can continue; Step advances the time to the next
// event. The same seed and the same order of calls give the same run.
//
// The simulator randomizes when each slice becomes visible to each consumer and each credit to its
// producer (in order on one lane, in any order between lanes), when each peer notices a crash, and
// when each peer imports a region.
#ifndef INCCL_TRANSPORT_SIM_SIM_WORLD_H_
#define INCCL_TRANSPORT_SIM_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/sim/sim_lane.h"
#include "transport/sim/sim_regions.h"
#include "transport/transport.h"

namespace inccl {

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

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SIM_SIM_WORLD_H_
