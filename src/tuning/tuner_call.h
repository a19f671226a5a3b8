// SPDX-License-Identifier: Apache-2.0
//
// What the tuner knows of a call. Equal on all ranks.
#ifndef INCCL_TUNING_TUNER_CALL_H_
#define INCCL_TUNING_TUNER_CALL_H_

#include <cstdint>

#include "base/collective_args.h"
#include "compress/codec.h"
#include "topology/host_map.h"
#include "tuning/slot_budget.h"

namespace inccl {

// What an element of a compressed call takes on its way, in 16ths of a bit.
struct WireBits {
  static constexpr uint32_t kUnit = 16;

  uint32_t data = 0;  // of one contribution or result; 0: the element itself
  uint32_t side = 0;  // of the side information of one phase
  uint32_t side_phases = 0;
};

// The values of `codec` for calls of `collective`.
WireBits WireBitsOf(const Codec& codec, Collective collective, int nranks);

struct TunerCall : CollectiveArgs {
  bool compressed = false;
  bool reproducible = false;
  Route route{};  // of the codec
  // The codec does not compress calls this small. Sums are then in rank order, if an admitted
  // algorithm has that.
  bool below_min_bytes = false;
  const HostMap* hosts = nullptr;  // nullptr: one host
  SlotBudget slots = {};           // by default without a limit
  WireBits wire = {};              // of the codec
};

// Whether the ranks of each host add up their elements before the codec sees them.
inline bool SumsHosts(const Route& route, Collective collective, const HostMap* hosts) {
  return route.sums_hosts && Reduces(collective) && hosts != nullptr && hosts->LargestHost() > 1;
}

inline int HostsOf(const TunerCall& call) {
  return call.hosts == nullptr ? 1 : call.hosts->hosts();
}

}  // namespace inccl

#endif  // INCCL_TUNING_TUNER_CALL_H_
