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

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels,
                 uint32_t slice_bytes);

SlotOptions SlotsFor(uint32_t slice_bytes);

}  // namespace inccl

#endif  // INCCL_TUNING_SEGMENTATION_H_
