// SPDX-License-Identifier: Apache-2.0
#include "topology/host_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace inccl {

HostMap::HostMap(std::span<const uint64_t> identities) {
  std::unordered_map<uint64_t, int> numbers;
  ranks_.reserve(identities.size());
  for (const uint64_t identity : identities) {
    const auto [entry, is_new] = numbers.try_emplace(identity, hosts());
    if (is_new) members_.emplace_back();
    std::vector<int>& members = members_[static_cast<size_t>(entry->second)];
    members.push_back(nranks());
    largest_ = std::max(largest_, static_cast<int>(members.size()));
    ranks_.push_back({.host = entry->second, .local = static_cast<int>(members.size()) - 1});
  }
}

int HostMap::SmallestHost() const {
  int smallest = largest_;
  for (const std::vector<int>& members : members_) {
    smallest = std::min(smallest, static_cast<int>(members.size()));
  }
  return smallest;
}

void HostMap::SetSites(std::vector<int> sites) {
  sites_ = std::move(sites);
  site_count_ = sites_.empty() ? 1 : 1 + *std::max_element(sites_.begin(), sites_.end());
  order_.resize(sites_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return sites_[static_cast<size_t>(a)] < sites_[static_cast<size_t>(b)];
  });
  places_.resize(sites_.size());
  for (size_t place = 0; place < order_.size(); ++place) {
    places_[static_cast<size_t>(order_[place])] = static_cast<int>(place);
  }
}

HostMap HostMap::Groups() const {
  if (!GroupsAreSites()) return *this;
  std::vector<uint64_t> identities;
  for (const Place& place : ranks_) identities.push_back(static_cast<uint64_t>(SiteOf(place.host)));
  return HostMap(identities);
}

bool HostMap::HasGroups() const {
  if (hosts() == 1) return false;
  return largest_ > 1 || (site_count_ > 1 && site_count_ < hosts());
}

HostMap HostMap::OneHost(int nranks) {
  return HostMap(std::vector<uint64_t>(static_cast<size_t>(nranks)));
}

namespace {

constexpr int kMostTried = 8;  // sites of which all orders are tried

// Round trips between places, all of them known.
class Distances {
 public:
  explicit Distances(int count)
      : count_(count), us_(static_cast<size_t>(count) * static_cast<size_t>(count)) {}
  uint32_t& At(int a, int b) { return us_[Place(a, b)]; }
  uint32_t At(int a, int b) const { return us_[Place(a, b)]; }
  int count() const { return count_; }
  std::vector<uint32_t>& values() { return us_; }

  uint64_t Around(const std::vector<int>& order) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < order.size(); ++i) sum += At(order[i], order[(i + 1) % order.size()]);
    return sum;
  }

 private:
  size_t Place(int a, int b) const {
    return static_cast<size_t>(a) * static_cast<size_t>(count_) + static_cast<size_t>(b);
  }

  int count_;
  std::vector<uint32_t> us_;
};

// A short tour that begins with 0: the shortest one of few, else always on to the nearest.
std::vector<int> Tour(const Distances& distances) {
  std::vector<int> order(static_cast<size_t>(distances.count()));
  std::iota(order.begin(), order.end(), 0);
  if (distances.count() > kMostTried) {
    for (size_t i = 1; i < order.size(); ++i) {
      const auto rest = order.begin() + static_cast<std::ptrdiff_t>(i);
      std::iter_swap(rest, std::min_element(rest, order.end(), [&](int a, int b) {
                       return std::pair(distances.At(order[i - 1], a), a) <
                              std::pair(distances.At(order[i - 1], b), b);
                     }));
    }
    return order;
  }
  std::vector<int> best = order;
  while (std::next_permutation(order.begin() + 1, order.end())) {
    if (distances.Around(order) < distances.Around(best)) best = order;
  }
  return best;
}

}  // namespace

uint32_t Sites::LongestUs() const {
  return *std::max_element(round_trip_us.begin(), round_trip_us.end());
}

Sites FindSites(const HostMap& hosts, std::span<const MeasuredLink> measured) {
  std::map<std::pair<int, int>, uint32_t> links;  // of hosts
  for (const MeasuredLink& link : measured) {
    const auto [a, b] = std::minmax({hosts.HostOf(link.a), hosts.HostOf(link.b)});
    if (a == b || link.round_trip_us == 0) continue;
    const auto [known, is_new] = links.try_emplace({a, b}, link.round_trip_us);
    if (!is_new) known->second = std::min(known->second, link.round_trip_us);
  }
  // The lowest host of each host's site, over hosts that lead there.
  std::vector<int> near(static_cast<size_t>(hosts.hosts()));
  std::iota(near.begin(), near.end(), 0);
  const auto lowest = [&](int host) {
    while (near[static_cast<size_t>(host)] != host) host = near[static_cast<size_t>(host)];
    return host;
  };
  for (const auto& [pair, us] : links) {
    if (us >= kLongRoundTripUs) continue;
    const auto [low, high] = std::minmax({lowest(pair.first), lowest(pair.second)});
    near[static_cast<size_t>(high)] = low;
  }
  Sites sites{.count = 0, .of_host = std::vector<int>(near.size(), -1), .round_trip_us = {}};
  for (int host = 0; host < hosts.hosts(); ++host) {
    const int low = lowest(host);
    sites.of_host[static_cast<size_t>(host)] =
        low == host ? sites.count++ : sites.of_host[static_cast<size_t>(low)];
  }
  if (sites.count > kMostSites) {
    sites.count = 1;
    std::fill(sites.of_host.begin(), sites.of_host.end(), 0);
  }
  Distances distances(sites.count);
  uint32_t longest = 0;
  for (const auto& [pair, us] : links) {
    const int a = sites.of_host[static_cast<size_t>(pair.first)];
    const int b = sites.of_host[static_cast<size_t>(pair.second)];
    distances.At(a, b) = distances.At(b, a) = std::max(distances.At(a, b), us);
    longest = std::max(longest, us);
  }
  // Of one site, or of hosts between which nothing was measured.
  if (sites.count == 1 || longest < kLongRoundTripUs) {
    return {.count = 1, .of_host = {}, .round_trip_us = {longest}};
  }
  for (int a = 0; a < sites.count; ++a) {
    for (int b = 0; b < sites.count; ++b) {
      if (a != b && distances.At(a, b) == 0) distances.At(a, b) = longest;
    }
  }
  const std::vector<int> order = Tour(distances);
  std::vector<int> number(order.size());
  Distances in_order(sites.count);
  for (int a = 0; a < sites.count; ++a) {
    number[static_cast<size_t>(order[static_cast<size_t>(a)])] = a;
    for (int b = 0; b < sites.count; ++b) {
      in_order.At(a, b) =
          distances.At(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
    }
  }
  for (int& site : sites.of_host) site = number[static_cast<size_t>(site)];
  sites.round_trip_us = std::move(in_order.values());
  return sites;
}

}  // namespace inccl
