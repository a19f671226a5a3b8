// SPDX-License-Identifier: Apache-2.0
#include "compress/lossless/exponent_coding.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace inccl::lossless {
namespace {

// The largest number of counted exponents in a window of this length. Sets *first to the start of
// the first such window.
uint32_t FullestWindow(const uint16_t* histogram, uint32_t exponents, uint32_t length,
                       uint32_t* first) {
  constexpr uint32_t kOne = 1u << 16;  // counts above bit 16; below it the position, counted down
  uint32_t window = kOne - 1;
  for (uint32_t i = 0; i < std::min(exponents, length); ++i) window += histogram[i] * kOne;
  uint32_t fullest = window;
  for (uint32_t i = length; i < exponents; ++i) {
    window += (uint32_t{histogram[i]} - histogram[i - length]) * kOne - 1;
    fullest = std::max(fullest, window);  // no branch, since it would be unpredictable
  }
  *first = kOne - 1 - fullest % kOne;
  return fullest / kOne;
}

}  // namespace

Coding Choose(const uint16_t* histogram, uint32_t lo, uint32_t hi, uint32_t count,
              uint32_t escape_bits, uint32_t exponents) {
  const uint32_t zeros = histogram[0];
  if (lo == hi && (zeros == 0 || lo == 0)) return {.width = 0, .zero = 0, .base = lo, .escapes = 0};
  const uint32_t widest = WidestOf(exponents);
  Coding best;
  uint32_t cost = std::numeric_limits<uint32_t>::max();
  for (uint32_t width = 1; width <= widest && width * count < cost; ++width) {
    const uint32_t zero = zeros > 0 && width > 1 ? 1 : 0;
    Coding coding{.width = width, .zero = zero, .base = lo, .escapes = 0};
    uint32_t first = 0;
    const uint32_t most = FullestWindow(histogram + lo, hi - lo + 1, coding.direct(), &first);
    coding.base = std::min(lo + first, exponents - coding.direct());
    coding.escapes = count - most - zero * zeros;
    const uint32_t total = width * count + escape_bits * coding.escapes;
    if (total < cost) {
      cost = total;
      best = coding;
    }
  }
  return best;
}

bool IsZero(const std::byte* elements, uint32_t bytes) {
  return elements[0] == std::byte{0} && std::memcmp(elements, elements + 1, bytes - 1) == 0;
}

uint32_t PackZeros(std::byte* out) {
  *out = std::byte{kZeros};
  return 1;
}

uint32_t PackRaw(const std::byte* elements, uint32_t bytes, std::byte* out) {
  *out = std::byte{kRaw};
  std::memcpy(out + 1, elements, bytes);
  return 1 + bytes;
}

}  // namespace inccl::lossless
