// SPDX-License-Identifier: Apache-2.0
#include "tuning/store_policy.h"

#include <algorithm>
#include <bit>

namespace inccl {

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
