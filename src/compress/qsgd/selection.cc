// SPDX-License-Identifier: Apache-2.0
#include "compress/qsgd/selection.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "compress/qsgd/qsgd_config.h"

namespace inccl::qsgd {

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
  const uint64_t flip =
      all() ? 0 : Mix64(key_ ^ Mix64(superblock ^ uint64_t{segment} << 48)) % kSuperblock;
  uint32_t picked = 0;
  for (uint32_t i = 0; i < size_; ++i) {
    const auto place = static_cast<uint8_t>(places_[i] ^ flip);
    places[picked] = place;
    picked += place < count ? 1 : 0;
  }
  return picked;
}

}  // namespace inccl::qsgd
