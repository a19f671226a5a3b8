// SPDX-License-Identifier: Apache-2.0
//
// Segmentation of a call into windows and slices, and the sizes of slots. They are a pure function
// of the call and of options on which all ranks have agreed. collectives/chunking.h has the
// arithmetic of chunks.
#ifndef INCCL_TUNING_SEGMENTATION_H_
#define INCCL_TUNING_SEGMENTATION_H_

#include <cstdint>

#include "base/collective_args.h"
#include "collectives/chunking.h"
#include "collectives/program.h"
#include "compress/codec.h"

namespace inccl {

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

}  // namespace inccl

#endif  // INCCL_TUNING_SEGMENTATION_H_
