// SPDX-License-Identifier: Apache-2.0
#include "slot_writes.h"

#include <bit>
#include <cstddef>

namespace inccl {

SlotWrites::Size& SlotWrites::Of(uint64_t bytes) {
  static_assert(std::bit_width(kMost - 1) - std::bit_width(kLeast) + 1 == 7);
  return sizes_[static_cast<size_t>(std::bit_width(bytes) - std::bit_width(kLeast))];
}

SlotWrites::Way SlotWrites::Choose(uint64_t bytes, bool one_way) {
  if (!Learns(bytes)) return {.past = bytes >= kMost};
  Size& size = Of(bytes);
  const uint32_t call = size.calls++;
  if (call < 4) return {.past = call % 2 == 1, .until_read = one_way};  // twice each
  const bool past = size.time[1] < size.time[0];
  if (call % kProbe == 0) return {.past = !past, .until_read = one_way};
  return {.past = past, .until_read = one_way && call % kProbe == kProbe / 2};
}

// One slow call among many is somebody else's doing; several in a row are not.
void SlotWrites::Learn(uint64_t bytes, bool one_way, const Way& way, Time took) {
  if (!Learns(bytes) || (one_way && !way.until_read)) return;
  Time& time = Of(bytes).time[way.past ? 1 : 0];
  time = time == 0 || took < time ? took : time + (took - time) / 4;
}

}  // namespace inccl
