// SPDX-License-Identifier: Apache-2.0
#include "compress/qsgd/selection.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "compress/qsgd/qsgd_config.h"

namespace inccl::qsgd {
namespace {

// The field of 256 elements, as powers of 2 modulo x^8 + x^4 + x^3 + x^2 + 1.
constexpr uint32_t kPowers = kSuperblock - 1;  // one per element other than 0

// inverse[t] is n with 1 / t = 2^n; for t = 0, 1 / t counts as 0, which is stored behind all
// powers.
struct Field {
  std::array<uint16_t, kSuperblock> inverse{};
  std::array<uint8_t, 3 * kPowers> power{};
};

constexpr Field MakeField() {
  Field field;
  uint32_t value = 1;
  for (uint32_t n = 0; n < kPowers; ++n) {
    field.power[n] = field.power[n + kPowers] = static_cast<uint8_t>(value);
    field.inverse[value] = static_cast<uint16_t>(kPowers - n);
    value = value << 1 ^ (value >= 128 ? 0x11Du : 0u);
  }
  field.inverse[0] = 2 * kPowers;
  return field;
}

constexpr Field kField = MakeField();

}  // namespace

void Selection::Begin(uint64_t seed, uint64_t step, uint32_t selected) {
  std::iota(places_.begin(), places_.end(), uint8_t{0});
  size_ = selected;
  if (all()) return;
  const uint64_t steps = Sweep(selected);
  key_ = Mix64(seed ^ Mix64(step / steps));
  Rng rng(key_);
  for (uint32_t i = kSuperblock - 1; i > 0; --i) std::swap(places_[i], places_[rng.Below(i + 1)]);
  const auto first = static_cast<uint32_t>(step % steps) * selected;
  size_ = std::min(selected, kSuperblock - first);
  std::copy_n(places_.begin() + first, size_, places_.begin());
}

uint32_t Selection::Pick(uint32_t segment, uint64_t superblock, uint32_t count,
                         uint8_t* places) const {
  const uint64_t random = Mix64(key_ ^ Mix64(superblock ^ uint64_t{segment} << 48));
  const uint8_t* const power = kField.power.data() + ((random & 0xFFFFFFFFu) * kPowers >> 32);
  const auto before = static_cast<uint8_t>(random >> 32),
             after = static_cast<uint8_t>(random >> 40);
  uint32_t picked = 0;
  for (uint32_t i = 0; i < size_; ++i) {
    const auto place = static_cast<uint8_t>(power[kField.inverse[places_[i] ^ before]] ^ after);
    places[picked] = place;
    picked += place < count ? 1 : 0;
  }
  return picked;
}

}  // namespace inccl::qsgd
