// SPDX-License-Identifier: Apache-2.0
#include "tuning/segmentation.h"

#include <algorithm>

namespace inccl {
namespace {

constexpr uint16_t kSideDepth = 2;
constexpr uint32_t kSideSlotBytes = kWindow / kBlock;  // one scale code for every block of a window

uint64_t RoundUp(uint64_t value, uint64_t grain) { return (value + grain - 1) / grain * grain; }

}  // namespace

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels,
                 uint32_t slice_bytes) {
  ChunkingOptions options{call};
  options.group = kSlicesPerStep;
  uint64_t slice = slice_bytes / SizeOf(call.type) / kSuperblock * kSuperblock;
  // A codec may need more bytes per element than the caller's type.
  while (slice > kSuperblock &&
         codec.MaxBytes(call.type, call.nranks, static_cast<uint32_t>(slice)) > slice_bytes) {
    slice = std::max<uint64_t>(kSuperblock, slice / 2 / kSuperblock * kSuperblock);
  }
  options.slice_elements = static_cast<uint32_t>(std::max<uint64_t>(slice, kSuperblock));
  options.window_elements = codec.window_elements();
  if (options.window_elements == 0) {
    const uint64_t parallel =
        static_cast<uint64_t>(call.nranks) * static_cast<uint64_t>(channels) * kSlicesPerStep;
    options.window_elements =
        RoundUp(std::max<uint64_t>(kWindow, options.slice_elements * parallel), kSuperblock);
  }
  options.side_slice_elements =
      static_cast<uint32_t>(std::min<uint64_t>(options.window_elements, kWindow));
  while (codec.SideBytes(options.side_slice_elements) > kSideSlotBytes) {
    options.side_slice_elements /= 2;
  }
  return Chunking(options);
}

SlotOptions SlotsFor(uint32_t slice_bytes) {
  // A slice has at least one superblock, also of wide types.
  return {.data_bytes = std::max<uint32_t>(slice_bytes, kSuperblock * 8),
          .side_bytes = kSideSlotBytes,
          .data_depth = kDataDepth,
          .side_depth = kSideDepth};
}

}  // namespace inccl
