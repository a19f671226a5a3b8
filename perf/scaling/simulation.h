// SPDX-License-Identifier: Apache-2.0
//
// Runs one call of a fleet in virtual time. Every rank takes the steps of its strands in the
// executor's order (window, group of slices, step, slice; strands in the order of the schedule) as
// soon as slices, credits and its processor allow. A step occupies the rank's processor; the
// messages between hosts pass the link of the sending and then that of the receiving host, those
// between sites also the links of the sites, each in the order in which they come.
#ifndef INCCL_PERF_SCALING_SIMULATION_H_
#define INCCL_PERF_SCALING_SIMULATION_H_

#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/program.h"
#include "perf/scaling/fleet.h"
#include "perf/scaling/machine.h"
#include "perf/scaling/payloads.h"
#include "topology/host_map.h"

namespace inccl::perf {

struct CallTotals {
  double seconds = 0;                                // until the last rank has finished
  uint64_t slices = 0;                               // published, once per receiver
  uint64_t payload_bytes = 0;                        // theirs
  uint64_t crossing_slices = 0, crossing_bytes = 0;  // of these from host to host
  uint64_t most_sent = 0, most_received = 0;         // crossing bytes of one host
  uint64_t site_sent = 0;                            // from one site to others, of the busiest
  double busy_seconds = 0;                           // processor time of the busiest rank
  uint64_t steps = 0;                                // slices of steps that have run
};

class Simulation {
 public:
  // All arguments outlive it.
  Simulation(const Fleet* fleet, const HostMap* hosts, const SlotOptions& slots);

  // Runs a call with empty lanes at the start. An error names a rank and the strand that waits for
  // ever.
  Result<CallTotals> Run(const Chunking& chunking, const Machine& machine, Payloads* payloads);

 private:
  using Time = uint64_t;  // picoseconds
  static constexpr Time kNever = UINT64_MAX;

  struct Event {
    Time time;
    uint32_t index;  // a rank; with bytes: an end, which a message reaches
    uint32_t bytes;  // on the link
    bool operator>(const Event& other) const { return time > other.time; }
  };
  struct Lane {
    uint32_t published = 0;
    bool waits = false;  // the producer's strand, for a credit
  };
  struct End {
    uint32_t arrived = 0, released = 0;
    bool waits = false;  // the consumer's strand, for a slice
    size_t times = 0;    // of the first of its lane's depth in seen_ and credited_
  };
  struct Strand {
    Time ready = 0;  // not before; kNever: something must happen first
    uint32_t window = 0, group = 0, groups = 0, step = 0, slice = 0, slice_end = 0;
    uint32_t input = 0, output = 0;  // operands of the step that are known to be ready
    bool placed = false, finished = false, waits_for_strand = false;
    Range part;
  };
  struct Rank {
    Time event = kNever;  // of the only event that counts
    Time busy = 0;        // in all
    uint32_t unfinished = 0;
    uint16_t strand = 0;  // that runs, or is tried first
    bool running = false;
    uint32_t output = 0;  // of the running step: the next one to publish
    bool sent = false;    // its message has been paid for
  };
  struct Link {
    Time sends_until = 0, receives_until = 0;
    uint64_t sent = 0, received = 0;
  };

  void Reset();
  void Push(Time time, uint32_t index, uint32_t bytes) { events_.push({time, index, bytes}); }
  Time Picoseconds(double nanoseconds) const {
    return static_cast<Time>(std::llround(nanoseconds * 1000));
  }
  Time Occupy(uint32_t rank, double nanoseconds);  // processor time
  std::vector<Strand>::iterator StrandsOf(uint32_t rank) {
    return strands_.begin() + static_cast<std::ptrdiff_t>(first_strand_[rank]);
  }
  uint32_t DepthOf(const FleetLane& lane) const {
    if (lane.remote) return lane.side ? slots_.network_side_depth : slots_.network_data_depth;
    return lane.side ? slots_.side_depth : slots_.data_depth;
  }
  Time LatencyOf(const FleetLane& lane) const {
    return lane.far ? site_latency_ : lane.remote ? latency_ : local_latency_;
  }
  Link& SiteOf(uint32_t rank) {
    return site_links_[static_cast<size_t>(hosts_->SiteOf(hosts_->HostOf(static_cast<int>(rank))))];
  }
  std::span<const FleetOperand> List(uint32_t rank, uint32_t at) const {
    const std::vector<FleetOperand>& operands = fleet_->ranks[rank].operands;
    return {operands.data() + at + 1, operands[at].index};
  }

  void OnMessage(const Event& event);
  void OnRank(uint32_t rank);
  // Starts a step if a strand has one that is ready; else waits.
  void Poll(uint32_t rank);
  bool TryStrand(uint32_t rank, uint16_t index);
  bool Place(const FleetStrand& strand, Strand* state) const;
  void NoteWindow(uint32_t rank);
  bool InputsReady(uint32_t rank, const FleetStep& step, Strand* state);
  bool OutputsReady(uint32_t rank, const FleetStep& step, Strand* state);
  double WorkOf(uint32_t rank, const FleetStep& step, const Strand& state);
  void Release(uint32_t rank, const FleetStep& step);
  // Publishes the outputs of the running step; false while the rank pays for a message.
  bool PublishAll(uint32_t rank, const FleetStep& step, const Strand& state);
  void Publish(uint32_t lane_index, uint32_t bytes);
  void Arrive(uint32_t end, Time seen);
  // A strand may go on at `time`.
  void Wake(uint32_t rank, uint8_t strand, Time time);
  void Schedule(uint32_t rank, Time time);
  Status Stuck() const;

  const Fleet* const fleet_;
  const HostMap* const hosts_;
  const SlotOptions slots_;
  Chunking chunking_;
  Machine machine_;
  Payloads* payloads_ = nullptr;
  double link_ps_per_byte_ = 0, site_ps_per_byte_ = 0, processor_scale_ = 1;
  Time site_latency_ = 0, latency_ = 0, local_latency_ = 0;
  bool large_ = false;

  Time now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Lane> lanes_;
  std::vector<End> ends_;
  std::vector<Time> seen_;            // by end and slot: when the consumer sees the slice
  std::vector<Time> credited_;        // likewise: when the producer sees its release
  std::vector<Strand> strands_;       // of all ranks
  std::vector<size_t> first_strand_;  // by rank
  std::vector<Rank> ranks_;
  std::vector<Link> link_;        // by host
  std::vector<Link> site_links_;  // by site
  CallTotals totals_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SCALING_SIMULATION_H_
