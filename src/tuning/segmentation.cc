// SPDX-License-Identifier: Apache-2.0
#include "tuning/segmentation.h"

#include <algorithm>
#include <bit>

namespace inccl {
namespace {

constexpr uint16_t kSideDepth = 2;
constexpr uint32_t kSideSlotBytes = kWindow / kBlock;  // one scale code for every block of a window

// Over long links.
constexpr uint32_t kLeastFilled = 4;  // slices fill a fourth of a slot or more
constexpr uint64_t kMostDepth = 1024;
constexpr uint32_t kMostSlicesPerStep = 16;
constexpr uint64_t kLeastWindowBytes = kWindow / 4;  // two bits for each element
constexpr uint64_t kMostSideWindows = 64;

uint64_t RoundUp(uint64_t value, uint64_t grain) { return (value + grain - 1) / grain * grain; }

}  // namespace

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels, uint32_t slice_bytes,
                 const LongLinks& links) {
  ChunkingOptions options{call};
  options.group = links.slices_per_step;
  const uint64_t element_bytes = links.full_slices ? 1 : SizeOf(call.type);
  uint64_t slice = slice_bytes / element_bytes / kSuperblock * kSuperblock;
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

SlotOptions SlotsFor(uint32_t slice_bytes, uint64_t under_way) {
  // A slice has at least one superblock, also of wide types.
  SlotOptions slots{.data_bytes = std::max<uint32_t>(slice_bytes, kSuperblock * 8),
                    .side_bytes = kSideSlotBytes,
                    .data_depth = kDataDepth,
                    .side_depth = kSideDepth,
                    .network_data_depth = kDataDepth,
                    .network_side_depth = kSideDepth,
                    .side_windows = kSideWindows};
  if (under_way == 0) return slots;
  // Half as much again as the links hold, in slices that the codec has made to a quarter of a slot.
  const uint64_t wanted = under_way + under_way / 2;
  const auto within = [](uint64_t value, uint64_t most) {
    return static_cast<uint16_t>(std::min(value, most));
  };
  slots.network_data_depth = within(kDataDepth + wanted / (slice_bytes / kLeastFilled), kMostDepth);
  slots.side_windows = within(kSideWindows + wanted / kLeastWindowBytes, kMostSideWindows);
  slots.network_side_depth = slots.side_windows;
  return slots;
}

LongLinks LongLinksFor(const SlotOptions& slots, const HostMap* hosts, uint64_t under_way) {
  if (under_way == 0 || hosts == nullptr) return {};
  LongLinks links{.full_slices = true};
  if (hosts->LargestHost() == 1) {
    links.slices_per_step =
        std::clamp<uint32_t>(slots.network_data_depth / 2, kSlicesPerStep, kMostSlicesPerStep);
  }
  return links;
}

size_t StorePolicy::Place(uint64_t bytes) {
  static_assert(std::bit_width(kMost - 1) - std::bit_width(kLeast) + 1 == 11);
  return static_cast<size_t>(std::bit_width(bytes) - std::bit_width(kLeast));
}

bool StorePolicy::NonTemporal(uint64_t bytes) const {
  if (!Learns(bytes, false)) return bytes >= kMost;
  const Size& size = sizes_[Place(bytes)];
  if (size.time[0] == 0 || size.time[1] == 0) return bytes >= kLarge;
  return size.time[1] < size.time[0];
}

StorePolicy::Choice StorePolicy::Choose(uint64_t bytes, bool one_way) {
  if (!Learns(bytes, one_way)) return {.non_temporal = bytes >= kLeast};
  Size& size = sizes_[Place(bytes)];
  const uint32_t call = size.calls++;
  if (call < kCold + 4) return {.non_temporal = call % 2 == 1, .until_read = one_way};
  const bool non_temporal = NonTemporal(bytes);
  const auto [least, most] = std::minmax(size.time[0], size.time[1]);
  const bool known = call >= kFarProbe && most > least + least / 2;
  const uint32_t probe = known ? kFarProbe : kProbe;
  if (call % probe == 0) return {.non_temporal = !non_temporal, .until_read = one_way};
  return {.non_temporal = non_temporal, .until_read = one_way && call % kProbe == kProbe / 2};
}

void StorePolicy::Learn(uint64_t bytes, bool one_way, const Choice& way, Time took) {
  if (!Learns(bytes, one_way) || (one_way && !way.until_read)) return;
  Size& size = sizes_[Place(bytes)];
  if (size.calls <= kCold) return;
  Time& time = size.time[way.non_temporal ? 1 : 0];
  // Other load may delay a single call by any amount; several slow calls in a row count.
  time = time == 0 || took < time ? took : time + std::min(took - time, time / 8);
}

}  // namespace inccl
