// SPDX-License-Identifier: Apache-2.0
//
// The only place with the arithmetic that divides a call into windows, chunks, channel shares and
// slices. All of it is by element index from the start of a vector, in whole superblocks of 256, so
// no result depends on slice size.
#ifndef INCCL_COLLECTIVES_CHUNKING_H_
#define INCCL_COLLECTIVES_CHUNKING_H_

#include <cstdint>

#include "base/types.h"
#include "collectives/schedule.h"
#include "compress/codec.h"

namespace inccl {

struct ChunkingOptions : CollectiveArgs {
  uint64_t window_elements = 0;      // multiple of kSuperblock
  uint32_t slice_elements = 0;       // of data lanes, multiple of kSuperblock
  uint32_t side_slice_elements = 0;  // of side lanes
  uint32_t group =
      1;  // slices of a chunk that a step handles before the next step; at most the lanes' depth
};

class Chunking {
 public:
  Chunking() = default;
  explicit Chunking(const ChunkingOptions& options);

  uint64_t windows() const { return windows_; }
  const ChunkingOptions& options() const { return options_; }

  // The channel's share of a chunk of a window; count 0 if it is empty.
  Range Part(uint64_t window, const Phase& phase, uint32_t chunk, uint32_t channel) const;
  uint32_t SliceElements(const Phase& phase) const {
    return phase.lane_class == LaneClass::kSide ? options_.side_slice_elements
                                                : options_.slice_elements;
  }
  uint32_t Group(const Phase& phase) const {
    return phase.lane_class == LaneClass::kSide ? 1 : options_.group;
  }
  // The number of slices of a part.
  uint32_t Slices(const Range& part, const Phase& phase) const {
    const uint32_t slice = SliceElements(phase);
    return (part.count + slice - 1) / slice;
  }
  // Slice `index` of a part.
  Range Slice(const Range& part, const Phase& phase, uint32_t index) const;
  // The position of a slice in the caller's buffers, in elements.
  uint64_t InputOffset(const Range& slice) const {
    return InputSegment(slice.segment) * options_.count + slice.first;
  }
  uint64_t OutputOffset(const Range& slice) const {
    return OutputSegment(slice.segment) * options_.count + slice.first;
  }

 private:
  // The index of a segment's vector in this rank's input or output. A rank that sends to several
  // ranks (or receives from several) has one vector for each, other ranks have one.
  uint64_t InputSegment(uint64_t segment) const;
  uint64_t OutputSegment(uint64_t segment) const;

  ChunkingOptions options_;
  uint64_t windows_ = 0;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_CHUNKING_H_
