// SPDX-License-Identifier: Apache-2.0
//
// The memory that the data slots of one algorithm may take on a rank. Pure functions of what all
// ranks have agreed on, like the tuner.
#ifndef INCCL_TUNING_SLOT_BUDGET_H_
#define INCCL_TUNING_SLOT_BUDGET_H_

#include <cstdint>

#include "base/types.h"
#include "collectives/algorithms.h"
#include "collectives/program.h"
#include "topology/host_map.h"
#include "tuning/cost_constants.h"

namespace inccl {

struct SlotBudget {
  uint64_t bytes = UINT64_MAX;        // INCCL_SLOT_BYTES_MAX
  uint32_t slice_bytes = 128 * 1024;  // INCCL_SLICE_BYTES
  int channels = 1;
  // Consumers read the producer's slots, so a lane's slots exist once. Otherwise both ends of a
  // lane have slots, and a lane of several consumers is several lanes.
  bool shared_slots = false;
  uint64_t under_way = 0;  // UnderWay
};

// The bytes that a rank's links to other hosts hold, of which each host's ranks have a share; 0:
// the links are short, or there is one host.
uint64_t UnderWay(const CostConstants& costs, const HostMap* hosts);

// An upper bound of the data slots of the rank that has the most of them. `hosts`: nullptr for one
// host.
uint64_t SlotBytes(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                   const SlotBudget& budget, uint32_t slice_bytes);

// The size of slices with which the slots fit the budget: budget.slice_bytes, or a half, a quarter,
// ... of it. If not even LeastSliceBytes fits, returns 0.
uint32_t SliceBytesFor(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                       const SlotBudget& budget);

// The slots of lanes with slices of that size: those of long links as many as they hold, within the
// budget.
SlotOptions SlotsOf(Collective collective, Algorithm algorithm, int nranks, const HostMap* hosts,
                    const SlotBudget& budget, uint32_t slice_bytes);

// Below this, slices cost more time than another algorithm. It is less for collectives that have
// only one algorithm.
uint32_t LeastSliceBytes(Collective collective, const SlotBudget& budget);

}  // namespace inccl

#endif  // INCCL_TUNING_SLOT_BUDGET_H_
