// SPDX-License-Identifier: Apache-2.0
//
// The library's schedules of all ranks of a communicator, in little memory and with their lanes
// connected. As the composite transport does it, a lane to consumers on several hosts becomes one
// lane to those on the producer's host and one to each of the others.
#ifndef INCCL_PERF_SCALING_FLEET_H_
#define INCCL_PERF_SCALING_FLEET_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"
#include "topology/host_map.h"

namespace inccl::perf {

struct FleetOperand {
  // Input on a lane: index into Fleet::ends. Output on a lane: index into Fleet::lanes. In front of
  // a list of operands: their number.
  uint32_t index = 0;
  Space space = Space::kInput;
  Format format;
};

struct FleetStep {
  uint32_t chunk = 0;
  uint32_t inputs = 0, outputs = 0;  // lists in FleetRank::operands; steps share equal lists
};

struct FleetStrand {
  uint8_t phase = 0, channel = 0;
  std::vector<FleetStep> steps;
  std::vector<Dependency> waits;
};

struct FleetRank {
  std::vector<FleetStrand> strands;
  std::vector<FleetOperand> operands;
};

struct FleetLane {
  uint32_t producer = 0, first_end = 0;
  uint16_t ends = 0;    // one for each consumer
  uint8_t strand = 0;   // of the producer
  bool remote = false;  // the consumer, which is the only one, is on another host
  bool far = false;     // of another site
  bool side = false;
};

struct FleetEnd {
  uint32_t consumer = 0, lane = 0;
  uint8_t strand = 0;  // of the consumer
};

struct Fleet {
  std::vector<Phase> phases;
  std::vector<FleetRank> ranks;
  std::vector<FleetLane> lanes;
  std::vector<FleetEnd> ends;
};

// `request` says everything but the rank.
Result<Fleet> MakeFleet(ScheduleRequest request, const HostMap& hosts);

// `ranks` ranks, `per_host` neighbours on each host, as many neighbouring hosts on each site.
HostMap EqualHosts(int ranks, int per_host, int sites = 1);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SCALING_FLEET_H_
