// SPDX-License-Identifier: Apache-2.0
#include "collectives/chunking.h"

#include <algorithm>

namespace inccl {
namespace {

struct Share {
  uint64_t first, count;
};

// Share `index` of `total` items dealt to `parts`: the first (total mod parts) shares have one
// more.
Share Deal(uint64_t total, uint64_t parts, uint64_t index) {
  const uint64_t each = total / parts, extra = total % parts;
  return {index * each + std::min(index, extra), each + (index < extra ? 1 : 0)};
}

// Whether each chunk is a segment of its own; otherwise chunks are parts of the only segment.
bool Segmented(Collective collective) { return SegmentsOf(collective, 2) > 1; }

}  // namespace

Chunking::Chunking(const ChunkingOptions& options)
    : options_(options),
      windows_((options.count + options.window_elements - 1) / options.window_elements) {}

Range Chunking::Part(uint64_t window, const Phase& phase, uint32_t chunk, uint32_t channel) const {
  const uint64_t begin = window * options_.window_elements;
  const uint64_t length = std::min(options_.window_elements, options_.count - begin);
  const bool segmented = Segmented(options_.collective);
  Share share{0, (length + kSuperblock - 1) / kSuperblock};
  if (!segmented) share = Deal(share.count, phase.chunks, chunk);
  const Share sub = Deal(share.count, phase.channels, channel);
  const uint64_t first = std::min(length, (share.first + sub.first) * kSuperblock);
  const uint64_t end = std::min(length, (share.first + sub.first + sub.count) * kSuperblock);
  return {segmented ? chunk : 0, begin + first, static_cast<uint32_t>(end - first)};
}

Range Chunking::Slice(const Range& part, const Phase& phase, uint32_t index) const {
  const uint32_t slice = SliceElements(phase);
  const uint32_t offset = index * slice;
  return {part.segment, part.first + offset, std::min(slice, part.count - offset)};
}

uint64_t Chunking::InputSegment(uint64_t segment) const {
  switch (options_.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter: return segment;
    case Collective::kAllToAll: return segment % static_cast<uint64_t>(options_.nranks);
    default: return 0;
  }
}

uint64_t Chunking::OutputSegment(uint64_t segment) const {
  switch (options_.collective) {
    case Collective::kAllGather:
    case Collective::kGather: return segment;
    case Collective::kAllToAll: return segment / static_cast<uint64_t>(options_.nranks);
    default: return 0;
  }
}

}  // namespace inccl
