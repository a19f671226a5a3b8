// SPDX-License-Identifier: Apache-2.0
#include "topology/host_map.h"

#include <algorithm>
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

}  // namespace inccl
