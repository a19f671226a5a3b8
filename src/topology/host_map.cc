// SPDX-License-Identifier: Apache-2.0
#include "topology/host_map.h"

#include <algorithm>
#include <unordered_map>

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

HostMap HostMap::OneHost(int nranks) {
  return HostMap(std::vector<uint64_t>(static_cast<size_t>(nranks)));
}

}  // namespace inccl
