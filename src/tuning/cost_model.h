// SPDX-License-Identifier: Apache-2.0
//
// What a call takes over several hosts, by algorithm: the alpha-beta-gamma model of
// docs/algorithms.md. The estimates are a pure function of the call, the hosts and the constants,
// in whole numbers, so all ranks compute the same.
#ifndef INCCL_TUNING_COST_MODEL_H_
#define INCCL_TUNING_COST_MODEL_H_

#include <cstdint>

#include "base/types.h"
#include "collectives/algorithms.h"
#include "compress/codec.h"
#include "topology/host_map.h"
#include "tuning/segmentation.h"

namespace inccl {

// What the tuner knows of a call. Equal on all ranks.

// What an element of a compressed call takes on its way, in 16ths of a bit.
struct WireBits {
  static constexpr uint32_t kUnit = 16;

  uint32_t data = 0;  // of one contribution or result; 0: the element itself
  uint32_t side = 0;  // of the side information of one phase
  uint32_t side_phases = 0;
  uint32_t shorter = 0;  // by which `data` shrinks where the codec shortens its payloads
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

// What the schedules of a call have to do. Messages and elements are those of the rank or host that
// has the most of them; elements of a message count once per consumer on another host.
struct CostShape {
  // Of the chain of dependent messages with the most messages between hosts.
  uint64_t network_hops = 0, shm_hops = 0;
  // Of these network_hops, those inside a site, if there are several sites.
  uint64_t site_hops = 0;
  // Between hosts, sent and received by one rank.
  uint64_t network_messages = 0;
  // On the link of one host, in the direction with more.
  uint64_t link_elements = 0;
  // On the link of one site, in the direction with more; 0: there is one site.
  uint64_t site_elements = 0;
  // Hops during which this link waits for others, and the elements that pass a link in one hop.
  uint64_t waiting_hops = 0, hop_elements = 0;
  // Of a chunk whose slices a strand takes through all hops group by group. 0: no strand waits for
  // what it has sent, so slices follow each other.
  uint64_t serial_elements = 0;
  // Received by one rank from ranks of its host.
  uint64_t shm_elements = 0;
  // Contributions that one rank adds.
  uint64_t added_elements = 0;
  // What the codec of one rank does.
  uint64_t encoded_elements = 0, decoded_elements = 0, hop_sums = 0;
  uint64_t folded_elements = 0;  // contributions that one operation adds besides its first ones
  // By how much the average element on the link is wider than one contribution, in 16ths of a bit,
  // in a codec whose sums grow.
  uint64_t widening = 0;

  bool operator==(const CostShape&) const = default;
};

// The shape of the data phase of a call of `count` elements in each vector. The algorithm has a
// schedule for the call.
CostShape ShapeOf(Collective collective, Algorithm algorithm, int root, uint64_t count,
                  const HostMap& hosts);

struct CostEstimate {
  uint64_t ns = 0;
  bool side_one_shot = false;  // the faster agreement; all-reduce only
};

// With call.hosts.
CostEstimate EstimateCost(const TunerCall& call, Algorithm algorithm,
                          const CostConstants& constants);

// Whether ranks that have a processor each end a compressed call earlier if the codec shortens its
// payloads: there is time for it while the link is busy. With call.hosts.
bool ShorteningPays(const TunerCall& call, Algorithm algorithm, const CostConstants& constants);

}  // namespace inccl

#endif  // INCCL_TUNING_COST_MODEL_H_
