// SPDX-License-Identifier: Apache-2.0
#include "transport/sim/sim_regions.h"

#include <algorithm>
#include <utility>

namespace inccl::sim {

SimRegions::SimRegions(int nranks, Later later)
    : later_(std::move(later)),
      places_(static_cast<size_t>(nranks)),
      known_(places_.size() * places_.size() * kPlaces),
      offenders_(places_.size(), -1) {}

uint32_t SimRegions::ExportRegion(int owner, const Region& region) {
  Places& places = places_[static_cast<size_t>(owner)];
  ++uses_;
  for (uint32_t i = 0; i < kPlaces; ++i) {
    Place& place = places[i];
    if (place.generation == 0 || place.region != region.generation) continue;
    place.used = uses_;
    if (region.writable && !place.writable) Post(owner, region, i);
    return i + 1;
  }
  const auto oldest = std::min_element(
      places.begin(), places.end(), [](const Place& a, const Place& b) { return a.used < b.used; });
  const auto index = static_cast<uint32_t>(oldest - places.begin());
  Post(owner, region, index);
  return index + 1;
}

void SimRegions::Post(int owner, const Region& region, uint32_t index) {
  Place& place = places_[static_cast<size_t>(owner)][index];
  place = {.region = region.generation,
           .generation = ++generations_,
           .used = uses_,
           .writable = region.writable,
           .answers = std::vector<uint64_t>(places_.size())};
  const Knowledge news = {place.generation, region.data, region.bytes, region.writable, 0};
  for (int peer = 0; peer < static_cast<int>(places_.size()); ++peer) {
    if (peer == owner) continue;
    later_(owner, [this, owner, index, peer, news] { Learn(owner, index, peer, news); });
  }
}

void SimRegions::Learn(int owner, uint32_t index, int peer, const Knowledge& news) {
  Knowledge& known = Known(owner, index + 1, peer);
  if (news.generation < known.generation) return;  // overtaken by a newer export
  if (known.users > 0) {
    offenders_[static_cast<size_t>(peer)] = owner;
    return;
  }
  known = news;
  later_(peer, [this, owner, index, peer, generation = news.generation] {
    uint64_t& answer =
        places_[static_cast<size_t>(owner)][index].answers[static_cast<size_t>(peer)];
    answer = std::max(answer, generation);
  });
}

void SimRegions::InvalidateRegion(int owner, uint32_t region) {
  places_[static_cast<size_t>(owner)][region - 1].generation = 0;
}

bool SimRegions::ReachableFrom(int owner, uint32_t region, int peer) const {
  if (region == 0) return false;
  const Place& place = places_[static_cast<size_t>(owner)][region - 1];
  return place.generation != 0 && place.answers[static_cast<size_t>(peer)] == place.generation;
}

bool SimRegions::Counts(int owner, uint32_t region, int peer) const {
  return places_[static_cast<size_t>(owner)][region - 1].generation ==
         Known(owner, region, peer).generation;
}

std::byte* SimRegions::At(int owner, const RemoteAddress& place, size_t bytes, bool to_write,
                          int peer) const {
  if (place.region == 0 || place.region > kPlaces) return nullptr;
  const Knowledge& known = Known(owner, place.region, peer);
  if (known.data == nullptr || (to_write && !known.writable)) return nullptr;
  if (place.offset > known.bytes || bytes > known.bytes - place.offset) return nullptr;
  return known.data + place.offset;
}

}  // namespace inccl::sim
