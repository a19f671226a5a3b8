// SPDX-License-Identifier: Apache-2.0
#include "tuning/segmentation.h"

#include <algorithm>
#include <bit>

namespace inccl {
namespace {

constexpr uint16_t kDataDepth = 4;
constexpr uint16_t kSideDepth = 2;
constexpr uint16_t kWholeChunksDepth = 2;              // their slots may be large
constexpr uint32_t kSideSlotBytes = kWindow / kBlock;  // a scale code for every block of a window
constexpr uint32_t kGroup = kDataDepth / 2;

uint64_t RoundUp(uint64_t value, uint64_t grain) { return (value + grain - 1) / grain * grain; }

}  // namespace

Chunking CutCall(const CutRequest& request, const Codec& codec) {
  ChunkingOptions options;
  options.collective = request.collective;
  options.nranks = request.nranks;
  options.count = request.count;
  options.group = kGroup;
  uint64_t slice = request.slice_bytes / SizeOf(request.type) / kSuperblock * kSuperblock;
  // A codec may need more than the caller's type per element.
  while (slice > kSuperblock &&
         codec.MaxBytes(request.type, request.nranks, static_cast<uint32_t>(slice)) >
             request.slice_bytes) {
    slice = std::max<uint64_t>(kSuperblock, slice / 2 / kSuperblock * kSuperblock);
  }
  options.slice_elements = static_cast<uint32_t>(std::max<uint64_t>(slice, kSuperblock));
  options.window_elements = codec.window_elements();
  if (codec.whole_chunks()) {
    options.slice_elements = static_cast<uint32_t>(options.window_elements);
    options.group = 1;
  }
  if (options.window_elements == 0) {
    const uint64_t parallel =
        static_cast<uint64_t>(request.nranks) * static_cast<uint64_t>(request.channels) * kGroup;
    options.window_elements =
        RoundUp(std::max<uint64_t>(kWindow, options.slice_elements * parallel), kSuperblock);
  }
  options.side_slice_elements =
      static_cast<uint32_t>(std::min<uint64_t>(options.window_elements, kWindow));
  while (codec.has_side_phase() && codec.SideBytes(options.side_slice_elements) > kSideSlotBytes) {
    options.side_slice_elements /= 2;
  }
  return Chunking(options);
}

SlotOptions SlotsFor(uint32_t slice_bytes) {
  // Narrow slices of wide types still take a superblock.
  return {.data_bytes = std::max<uint32_t>(slice_bytes, kSuperblock * 8),
          .side_bytes = kSideSlotBytes,
          .data_depth = kDataDepth,
          .side_depth = kSideDepth};
}

SlotOptions SlotsFor(const SlotRequest& request, const Codec& codec) {
  SlotOptions slots = SlotsFor(request.slice_bytes);
  if (!codec.whole_chunks()) return slots;
  const uint64_t row = std::min(request.count, codec.window_elements());
  const uint64_t superblocks = std::bit_ceil((row + kSuperblock - 1) / kSuperblock);
  const uint64_t parts = request.one_part ? 1 : static_cast<uint64_t>(request.nranks);
  const auto chunk = static_cast<uint32_t>((superblocks + parts - 1) / parts * kSuperblock);
  const uint32_t bytes = codec.MaxBytes(request.type, request.nranks, chunk);
  slots.data_bytes = std::max(slots.data_bytes, std::bit_ceil(bytes));
  slots.data_depth = kWholeChunksDepth;
  return slots;
}

}  // namespace inccl
