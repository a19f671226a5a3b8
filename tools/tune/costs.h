// SPDX-License-Identifier: Apache-2.0
//
// Measures the constants of the cost model between the processes of one World, which are on several
// hosts.
#ifndef INCCL_TOOLS_TUNE_COSTS_H_
#define INCCL_TOOLS_TUNE_COSTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "perf/support/world.h"
#include "topology/host_map.h"
#include "tuning/segmentation.h"

namespace inccl::tools {

// What a sample of calls took, in ns.
struct NetworkTimes {
  double round_trip = 0;        // a small message and its answer
  double burst_round_trip = 0;  // kBurst small messages and one answer
  double exchange = 0;          // `exchanged` bytes out of a host and as many in
  uint64_t exchanged = 0;
};
inline constexpr int kBurst = 4;  // a lane has slots for as many

struct ShmTimes {
  double round_trip = 0;
  double large_round_trip = 0;  // `large` bytes and a small answer
  uint64_t large = 0;
};

// Constants by name. Noise never makes one negative, or larger than a table may have it.
using MeasuredCosts = std::map<std::string, uint64_t>;
void AddNetworkCosts(const NetworkTimes& times, MeasuredCosts* costs);
void AddShmCosts(const ShmTimes& times, MeasuredCosts* costs);

struct CostOptions {
  std::string codec;
  uint64_t iterations = 15;
};

// The hosts of the ranks of a World; all ranks call it.
Result<HostMap> HostsOf(perf::World& world);
// All ranks call it and get the same constants. Constants of messages inside a host are left out if
// host 0 has one rank, those of the codec with the codec "none". kInvalidUsage: all ranks are on
// one host.
Result<MeasuredCosts> MeasureCosts(perf::World& world, const HostMap& hosts,
                                   const CostOptions& options);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_TUNE_COSTS_H_
