// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/requant_table.h"

#include <algorithm>
#include <bit>

#include "compress/hbi/format.h"
#include "compress/hbi/level_table.h"

namespace inccl::hbi {

RequantTable::Row RequantTable::MakeRow(const Point& point, uint32_t agreed, uint32_t own) {
  // A float of kOne + i has the integer i in its bits. Adding to it rounds to nearest even.
  constexpr float kOne = 12582912.0f + kRoundHalfUp;
  const int32_t k2 = point.k2;
  const float limit = static_cast<float>(65536 * k2);
  const float step = point.sum->step[agreed], factor = point.result->factor[own];
  const auto code = [&](int32_t sum) {
    const float value = static_cast<float>(sum) * step;
    float fixed = value * factor;
    fixed = fixed < -limit ? -limit : fixed;
    fixed = fixed > limit ? limit : fixed;
    return static_cast<uint8_t>(((std::bit_cast<int32_t>(fixed + kOne) - 0x4b400000) >> 16) + k2);
  };
  constexpr int32_t kHalf = kSums / 2;
  Row row;
  for (int32_t i = 0; i < kHalf; ++i) row[static_cast<size_t>(i)] = code(i);
  for (int32_t i = 0; i < kHalf; ++i) row[static_cast<size_t>(i + kHalf)] = code(i - kHalf);
  return row;
}

void RequantTable::Make(const Point& point) {
  constexpr uint32_t kMiddle = 130;  // of the fine codes, a multiple of 5
  rows_ = {};
  auto end = codes_.begin();
  for (uint32_t difference = 0; difference < kDifferences; ++difference) {
    const auto first = end;
    for (uint32_t agreed = kMiddle; agreed < kMiddle + 5; ++agreed) {
      const uint32_t own = agreed + difference - kMostBelowAgreed;
      const Row row = MakeRow(point, agreed, own);
      const auto same = std::find(first, end, row);
      rows_[KeyOf(agreed, own)] = static_cast<uint8_t>(same - codes_.begin());
      if (same == end) *end++ = row;
    }
  }
}

}  // namespace inccl::hbi
