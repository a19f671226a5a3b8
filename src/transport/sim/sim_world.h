// SPDX-License-Identifier: Apache-2.0
//
// The simulator: all ranks in one process, on one thread, in virtual time. Whoever uses it polls
// the ranks in any order and calls Step when none of them can go on; Step takes the time to the
// next event. The same seed and the same order of calls give the same run.
//
// What is random: when each slice becomes visible to each consumer, and each credit to its producer
// (in order on one lane, in any order between lanes), when a crash is noticed by each peer, and
// when a region that a rank offers is known to each peer.
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
  Time min_delay = kMicrosecond;  // delays are log-uniform between these
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

  // Rank's end; owned by the world.
  Transport* transport(int rank);
  // Another handle of rank's end, for owners; the world outlives it.
  std::unique_ptr<Transport> NewTransport(int rank);

  int nranks() const { return nranks_; }
  const Clock& clock() const { return clock_; }
  Time now() const { return clock_.now; }

  // Advances to the next event and executes it: a slice or a credit becomes visible, something that
  // was scheduled runs, a crash is noticed. False if nothing will ever happen by itself.
  bool Step();
  // Executes all events up to `time`, which becomes the present.
  void AdvanceTo(Time time);
  // kNever if none.
  Time next_event() const { return events_.empty() ? kNever : events_.top().time; }

  // Runs `event` at a random later time, unless `rank` (whose doing it is) crashes before.
  void Schedule(int rank, std::function<void()> event);

  // From now on nothing of that rank moves: what it has published or released and nobody has seen
  // yet is lost. After its detection time each peer's Progress is kRemoteError naming the rank.
  void Crash(int rank);
  bool crashed(int rank) const { return ranks_[static_cast<size_t>(rank)].crashed; }

  // Slices so far whose payload lies in a region, and slices that name a target.
  uint64_t references() const { return references_; }
  uint64_t targets() const { return targets_; }

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
    uint64_t tie = 0;  // random: events of one time come in any order
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
    TransportCounters counters;
    std::unique_ptr<Transport> transport;
  };

  Time RandomDelay();
  void At(Time time, int rank, std::function<void()> run);
  sim::SimLane* Lane(const LaneSpec& spec);
  Rank& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  // A slice is on its way to `consumer`, a credit on its way back.
  void Deliver(int producer, sim::SimLane::Consumer* consumer);
  void ReturnCredit(sim::SimLane::Consumer* consumer);

  int nranks_;
  SimOptions options_;
  Rng rng_;
  VirtualClock clock_;
  std::vector<Rank> ranks_;
  sim::SimRegions regions_;
  uint64_t references_ = 0, targets_ = 0;
  std::map<uint64_t, std::unique_ptr<sim::SimLane>> lanes_;  // by key
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SIM_SIM_WORLD_H_
