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

Result<MemoryHandle> SimRegions::Register(int owner, std::span<const std::byte> memory,
                                          const Registration& how) {
  Places& places = places_[static_cast<size_t>(owner)];
  const auto kept = std::count_if(places.begin(), places.end(),
                                  [](const Place& place) { return place.keepers > 0; });
  auto place = std::find_if(places.begin(), places.end(), [memory](const Place& each) {
    return each.generation != 0 && memory.data() >= each.memory.data() &&
           memory.data() + memory.size() <= each.memory.data() + each.memory.size();
  });
  const bool is_new = place == places.end();
  if (how.keep && kept == kMostKept && (is_new || place->keepers == 0)) {
    return SystemError("the simulator has no place for this memory");
  }
  if (is_new) {
    place = places.begin() + FindPlace(places, how.keep);
    *place = {.memory = memory, .answers = {}};
  }
  place->used = ++uses_;
  if (how.keep) ++place->keepers;
  const auto index = static_cast<uint32_t>(place - places.begin());
  const bool writable = how.access == Access::kReadWrite;
  if (is_new || (writable && !place->writable)) {
    place->writable = writable;
    Post(owner, index);
  }
  return MemoryHandle{.region = index + 1,
                      .on_device = how.on_device,
                      .writable = writable,
                      .offset = static_cast<uint64_t>(memory.data() - place->memory.data()),
                      .begin = memory.data(),
                      .end = memory.data() + memory.size(),
                      .memory = place->generation};
}

// A free place, or that of the region used longest ago among those that are not kept.
uint32_t SimRegions::FindPlace(const Places& places, bool keep) {
  const auto found = std::count_if(places.begin(), places.end(), [](const Place& place) {
    return place.generation != 0 && place.keepers == 0;
  });
  uint32_t best = kPlaces;
  for (uint32_t i = 0; i < kPlaces; ++i) {
    const Place& place = places[i];
    if (place.keepers > 0) continue;
    if (place.generation == 0 && (keep || found < kMostFound)) return i;
    if (place.generation != 0 && (best == kPlaces || place.used < places[best].used)) best = i;
  }
  return best;
}

void SimRegions::Deregister(int owner, const MemoryHandle& memory) {
  Place& place = places_[static_cast<size_t>(owner)][memory.region - 1];
  if (place.keepers > 0) --place.keepers;
}

void SimRegions::Post(int owner, uint32_t index) {
  Place& place = places_[static_cast<size_t>(owner)][index];
  place.generation = ++generations_;
  place.answers.assign(places_.size(), 0);
  const Knowledge news = {place.generation, const_cast<std::byte*>(place.memory.data()),
                          place.memory.size(), place.writable, 0};
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

void SimRegions::RevokeAccess(int owner, const MemoryHandle& memory) {
  if (memory.region != 0) places_[static_cast<size_t>(owner)][memory.region - 1].generation = 0;
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
