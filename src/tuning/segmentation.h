// SPDX-License-Identifier: Apache-2.0
//
// Segmentation of a call into windows and slices, and the sizes of slots. They are a pure function
// of the call and of options on which all ranks have agreed. collectives/call.h has the
// arithmetic of chunks.
#ifndef INCCL_TUNING_SEGMENTATION_H_
#define INCCL_TUNING_SEGMENTATION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/types.h"
#include "collectives/algorithms.h"
#include "collectives/call.h"
#include "collectives/program.h"
#include "compress/codec.h"
#include "topology/host_map.h"

namespace inccl {

// The memory that the data slots of one algorithm may take on a rank. Pure functions of what all
// ranks have agreed on, like the tuner.

// The constants of the cost model (cost_model.h): times of messages, bytes and elements.

// Whole numbers, so that all ranks compute the same estimates. The defaults are those of an
// Ethernet of 10 Gbit/s, and of one core for everything else.
struct CostConstants {
  uint64_t network_latency_ns = 25'000;
  uint64_t network_message_ns = 8'000;
  uint64_t network_byte_ps = 850;
  uint64_t site_latency_ns = 25'000;
  uint64_t site_byte_ps = 0;
  uint64_t shm_latency_ns = 1'000;
  uint64_t shm_byte_ps = 100;
  uint64_t reduce_byte_ps = 100;
  uint64_t encode_element_ps = 250;
  uint64_t decode_element_ps = 150;
  uint64_t hop_element_ps = 300;
  uint64_t fold_element_ps = 50;
  uint64_t shorten_element_ps = 1'000;

  bool operator==(const CostConstants&) const = default;
};

// The bytes that a long link holds, round trip times rate; 0: the links are short.
inline uint64_t BytesUnderWay(const CostConstants& costs) {
  constexpr uint64_t kNsPerUs = 1000, kPsPerNs = 1000;
  if (2 * costs.network_latency_ns < kLongRoundTripUs * kNsPerUs) return 0;
  return 2 * costs.network_latency_ns * kPsPerNs / std::max<uint64_t>(1, costs.network_byte_ps);
}

struct CostField {
  const char* name;
  uint64_t CostConstants::*value;
  uint64_t most;
  const char* meaning;
};

// With these limits no estimate overflows.
inline constexpr uint64_t kMostCostNs = 1'000'000'000;
inline constexpr uint64_t kMostCostPs = 100'000;
inline constexpr CostField kCostFields[] = {
    {"network_latency_ns", &CostConstants::network_latency_ns, kMostCostNs,
     "a small message from a rank to a rank on another host"},
    {"network_message_ns", &CostConstants::network_message_ns, kMostCostNs,
     "a further message that the same rank sends or receives"},
    {"network_byte_ps", &CostConstants::network_byte_ps, kMostCostPs,
     "a byte on the link of a host, which its ranks share"},
    {"site_latency_ns", &CostConstants::site_latency_ns, kMostCostNs,
     "a small message to another host of the same site, if there are several sites"},
    {"site_byte_ps", &CostConstants::site_byte_ps, kMostCostPs,
     "a byte on the link of a site, which its hosts share; 0: as network_byte_ps"},
    {"shm_latency_ns", &CostConstants::shm_latency_ns, kMostCostNs,
     "a small message inside a host"},
    {"shm_byte_ps", &CostConstants::shm_byte_ps, kMostCostPs, "a byte inside a host"},
    {"reduce_byte_ps", &CostConstants::reduce_byte_ps, kMostCostPs,
     "a byte of a contribution that is added"},
    {"encode_element_ps", &CostConstants::encode_element_ps, kMostCostPs,
     "an element that the codec encodes"},
    {"decode_element_ps", &CostConstants::decode_element_ps, kMostCostPs,
     "an element that the codec decodes"},
    {"hop_element_ps", &CostConstants::hop_element_ps, kMostCostPs,
     "an element that the codec adds to a sum on its way"},
    {"fold_element_ps", &CostConstants::fold_element_ps, kMostCostPs,
     "an element of a further contribution that the same operation adds"},
    {"shorten_element_ps", &CostConstants::shorten_element_ps, kMostCostPs,
     "an element of a payload that the codec shortens, and again one that it reads"},
};

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

// INCCL_SLOT_BYTES_MAX where it is not given: enough for slots to hold what long links do, if they
// are filled to a quarter.
inline uint64_t DefaultSlotBytes(uint64_t under_way) {
  constexpr uint64_t kLeast = 64 << 20, kMost = uint64_t{1} << 30;
  return std::clamp(8 * under_way, kLeast, kMost);
}

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

inline constexpr uint16_t kDataDepth = 4;  // slots of a data lane
// Slices of a chunk that a step handles before the next step: no more than the slots of a lane that
// has found memory for half of them only.
inline constexpr uint32_t kSlicesPerStep = kDataDepth / 2;
// Calls that move fewer bytes find in their caches what they have written, without turns
// (RequestArgs::turns).
inline constexpr uint64_t kLeastTurns = uint64_t{4} << 20;

// How a call uses long links.
struct LongLinks {
  // A slice has as many elements as fit a slot, so that slots hold what the links do. Otherwise no
  // more than the slot holds uncompressed, which stay in the caches.
  bool full_slices = false;
  uint32_t slices_per_step = kSlicesPerStep;
};

// `under_way`: the bytes that a rank's links to other hosts hold; 0: they are short.
SlotOptions SlotsFor(uint32_t slice_bytes, uint64_t under_way = 0);
// More slices per step where all lanes have the slots for them: each rank has a host for itself.
LongLinks LongLinksFor(const SlotOptions& slots, const HostMap* hosts, uint64_t under_way);

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels, uint32_t slice_bytes,
                 const LongLinks& links = {});

// Decides whether the slots of a call are written with non-temporal stores. If the ranks' cores
// share a cache, readers find medium-sized slots there, which is fastest. If they do not, every
// line comes from the writer's private cache, which takes several times as long as memory. Neither
// the operating system of a virtual machine nor an instruction tells which is the case, and it can
// change, so the policy learns from the calls. The choice is a hint and changes no result.

// For one kind of call on one communicator. All ranks see the same calls, so they try the other
// kind of store in the same call.
class StorePolicy {
 public:
  static constexpr uint64_t kLeast = 32 * 1024;          // smaller: ordinary stores
  static constexpr uint64_t kLarge = uint64_t{4} << 20;  // from here on: non-temporal stores if
                                                         // nothing is known, or one way
  static constexpr uint64_t kMost = uint64_t{64} << 20;  // from here on: non-temporal stores
  // One call in this many tries the other kind of store; of a size with kFarProbe calls one in
  // kFarProbe, if that takes half as long again.
  static constexpr uint32_t kProbe = 32, kFarProbe = 256;
  static constexpr uint32_t kCold = 4;  // calls that may be the first to touch their slots

  struct Choice {
    bool non_temporal = false;
    // Set if a writing rank does not also read. The call must last until all ranks have read,
    // otherwise its time says nothing about the readers.
    bool until_read = false;
  };
  // For the next call of `bytes`. `one_way`: some ranks only write or only read.
  Choice Choose(uint64_t bytes, bool one_way);
  // Whether non-temporal stores have been faster so far; for calls that Learn does not see.
  bool NonTemporal(uint64_t bytes) const;
  // Whether Learn uses the time of such a call.
  static bool Learns(uint64_t bytes, bool one_way) {
    return bytes >= kLeast && bytes < (one_way ? kLarge : kMost);
  }
  // Takes the time of a call that has followed Choose's choice.
  void Learn(uint64_t bytes, bool one_way, const Choice& way, Time took);

 private:
  struct Size {
    uint32_t calls = 0;
    std::array<Time, 2> time = {0, 0};  // ordinary, non-temporal; 0: unknown
  };
  static size_t Place(uint64_t bytes);

  std::array<Size, 11> sizes_;  // by powers of two
};

}  // namespace inccl

#endif  // INCCL_TUNING_SEGMENTATION_H_
