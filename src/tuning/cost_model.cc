// SPDX-License-Identifier: Apache-2.0
#include "tuning/cost_model.h"

#include <algorithm>
#include <cmath>

#include "collectives/schedule.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

// Above this, calls cost as much as this.
constexpr uint64_t kMostElements = uint64_t{1} << 30;
constexpr uint64_t kUnitsPerByte = uint64_t{8} * WireBits::kUnit;

// The bytes of elements of `width` 16ths of a bit.
uint64_t Bytes(uint64_t elements, uint64_t width) {
  if (width == 0) return 0;
  return elements <= UINT64_MAX / width ? elements * width / kUnitsPerByte
                                        : elements / kUnitsPerByte * width;
}

uint64_t Nanoseconds(uint64_t items, uint64_t ps) {
  constexpr uint64_t kPerNs = 1000;
  return items <= UINT64_MAX / kMostCostPs ? items * ps / kPerNs : items / kPerNs * ps;
}

// One phase of a call.
struct PhaseWidth {
  uint64_t units = 0;          // of an element, in 16ths of a bit
  bool coded = false;          // by a codec; else sums of elements
  uint64_t pipelined = 0;      // elements that a step handles before the next step
  uint64_t element_bytes = 0;  // uncompressed
};

uint64_t PhaseNs(const CostShape& shape, const PhaseWidth& width, const CostConstants& c) {
  const uint64_t units = width.units + (width.coded ? shape.widening * WireBits::kUnit : 0);
  const uint64_t on_chain = 2 * shape.network_hops;  // the latency counts both ends
  const uint64_t further =
      shape.network_messages > on_chain ? shape.network_messages - on_chain : 0;
  const uint64_t link =
      shape.link_elements + shape.waiting_hops * std::min(shape.hop_elements, width.pipelined);
  uint64_t ns = shape.network_hops * c.network_latency_ns + shape.shm_hops * c.shm_latency_ns +
                further * c.network_message_ns;
  if (BytesUnderWay(c) > 0 && shape.serial_elements > width.pipelined) {
    ns += (shape.serial_elements - 1) / width.pipelined * shape.network_hops * c.network_latency_ns;
  }
  ns += Nanoseconds(Bytes(link, units), c.network_byte_ps);
  ns += Nanoseconds(Bytes(shape.shm_elements, units), c.shm_byte_ps);
  if (width.coded) {
    ns += Nanoseconds(shape.encoded_elements, c.encode_element_ps);
    ns += Nanoseconds(shape.decoded_elements, c.decode_element_ps);
    ns += Nanoseconds(shape.hop_sums, c.hop_element_ps);
  } else {
    ns += Nanoseconds(shape.added_elements * width.element_bytes, c.reduce_byte_ps);
  }
  return ns;
}

// The algorithm of a side phase (SidePhaseOf in collectives/schedule.cc), and the collective that
// it is.
struct SideWay {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kTwoShot;
};

SideWay SideWayOf(const TunerCall& call, Algorithm algorithm, bool one_shot) {
  SideWay way;
  if (call.collective == Collective::kAllGather) way.collective = Collective::kAllGather;
  if (one_shot) {
    way.algorithm = Algorithm::kOneShot;
  } else if (TraitsOf(algorithm).several_hosts && call.wire.side_phases == 1) {
    way.algorithm = Algorithm::kHierarchical;
  } else if (call.collective == Collective::kAllReduce && call.nranks > kMostDirectRanks &&
             call.wire.side_phases == 1) {
    way.algorithm = Algorithm::kTree;
  }
  return way;
}

uint64_t SideNs(const TunerCall& call, uint64_t count, const SideWay& way,
                const CostConstants& constants) {
  // The agreement of segments is one all-reduce of all of them.
  const bool of_segments = call.collective == Collective::kReduceScatter;
  const uint64_t elements = of_segments ? count * static_cast<uint64_t>(call.nranks) : count;
  CostShape shape = ShapeOf(way.collective, way.algorithm, call.root, elements, *call.hosts);
  shape.widening = shape.serial_elements = 0;
  const PhaseWidth width{.units = call.wire.side, .pipelined = kWindow, .element_bytes = 0};
  return call.wire.side_phases * PhaseNs(shape, width, constants);
}

}  // namespace

WireBits WireBitsOf(const Codec& codec, Collective collective, int nranks) {
  double bits = 0, error = 0;
  codec.Bound(collective, nranks, &bits, &error);
  constexpr auto kElementsPerUnit = kWindow / static_cast<uint32_t>(kUnitsPerByte);
  const auto side_phases = static_cast<uint32_t>(codec.side_phases().size());
  return {.data = static_cast<uint32_t>(std::lround(bits * WireBits::kUnit)),
          .side = (codec.SideBytes(kWindow) + kElementsPerUnit - 1) / kElementsPerUnit,
          .side_phases = side_phases};
}

CostEstimate EstimateCost(const TunerCall& call, Algorithm algorithm,
                          const CostConstants& constants) {
  const uint64_t count = std::min<uint64_t>(call.count, kMostElements);
  const uint64_t element = SizeOf(call.type);
  const bool coded = call.compressed && call.wire.data != 0;
  const LongLinks links = LongLinksFor(SlotsFor(call.slots.slice_bytes, call.slots.under_way),
                                       call.hosts, call.slots.under_way);
  const PhaseWidth width{
      .units = coded ? call.wire.data : element * kUnitsPerByte,
      .coded = call.compressed,
      .pipelined = uint64_t{links.slices_per_step} * call.slots.slice_bytes / element,
      .element_bytes = element};
  const CostShape shape = ShapeOf(call.collective, algorithm, call.root, count, *call.hosts);
  CostEstimate estimate{.ns = PhaseNs(shape, width, constants)};
  if (!call.compressed || call.wire.side_phases == 0) return estimate;
  uint64_t side = SideNs(call, count, SideWayOf(call, algorithm, false), constants);
  if (call.collective == Collective::kAllReduce && call.nranks <= kMostDirectRanks) {
    const uint64_t one_shot = SideNs(call, count, SideWayOf(call, algorithm, true), constants);
    estimate.side_one_shot = one_shot < side;
    side = std::min(side, one_shot);
  }
  estimate.ns += side;
  return estimate;
}

}  // namespace inccl
