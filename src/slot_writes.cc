// SPDX-License-Identifier: Apache-2.0
#include "slot_writes.h"

#include <bit>
#include <cstddef>

namespace inccl {

SlotWrites::Size& SlotWrites::Of(uint64_t bytes) {
  static_assert(std::bit_width(kMost - 1) - std::bit_width(kLeast) + 1 == 5);
  return sizes_[static_cast<size_t>(std::bit_width(bytes) - std::bit_width(kLeast))];
}

bool SlotWrites::Choose(uint64_t bytes) {
  if (!Learns(bytes)) return bytes >= kMost;
  Size& size = Of(bytes);
  const uint32_t call = size.calls++;
  if (call < 4) return call % 2 == 1;  // twice each
  const bool past = size.time[1] < size.time[0];
  return call % kProbe == 0 ? !past : past;
}

// One slow call among many is somebody else's doing; several in a row are not.
void SlotWrites::Learn(uint64_t bytes, bool past, Time took) {
  if (!Learns(bytes)) return;
  Time& time = Of(bytes).time[past ? 1 : 0];
  time = time == 0 || took < time ? took : time + (took - time) / 4;
}

}  // namespace inccl
