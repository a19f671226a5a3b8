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
  const auto contains = [memory](const Place& place) {
    return place.generation != 0 && memory.data() >= place.memory.data() &&
           memory.data() + memory.size() <= place.memory.data() + place.memory.size();
  };
  const bool writable = how.access == Access::kReadWrite;
  auto found = std::find_if(places.begin(), places.end(), contains);
  const auto kept = std::count_if(places.begin(), places.end(),
                                  [](const Place& place) { return place.keepers > 0; });
  if (how.keep && kept == kMostKept && (found == places.end() || found->keepers == 0)) {
    return SystemError("the simulator has no place for this memory");
  }
  const bool is_new = found == places.end();
  if (is_new) {
    const auto rest = std::count_if(places.begin(), places.end(), [](const Place& place) {
      return place.keepers == 0 && place.generation != 0;
    });
    const bool replaces = !how.keep && rest >= kMostFound;
    found = std::min_element(places.begin(), places.end(), [&](const Place& a, const Place& b) {
      const auto order = [&](const Place& place) {
        return place.keepers > 0                   ? UINT64_MAX
               : replaces && place.generation == 0 ? UINT64_MAX - 1
                                                   : place.used;
      };
      return order(a) < order(b);
    });
    *found = {.memory = memory, .writable = writable, .answers = {}};
  }
  found->used = ++uses_;
  const auto index = static_cast<uint32_t>(found - places.begin());
  if (is_new || (writable && !found->writable)) {
    found->writable = writable;
    Post(owner, index);
  }
  if (how.keep) ++found->keepers;
  return MemoryHandle{.region = index + 1,
                      .on_device = how.on_device,
                      .writable = writable,
                      .offset = static_cast<uint64_t>(memory.data() - found->memory.data()),
                      .begin = memory.data(),
                      .end = memory.data() + memory.size(),
                      .memory = found->generation};
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
