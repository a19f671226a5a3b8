// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/mesh.h"

#include <bit>
#include <cstddef>
#include <utility>

namespace inccl {

ControlGraph::ControlGraph(HostMap hosts, int all_pairs) : hosts_(std::move(hosts)) {
  const int nranks = hosts_.nranks();
  if (nranks <= all_pairs) return;
  large_ = true;
  complete_ = false;
  for (int a = 0; a < nranks; ++a) {
    for (int b = a + 1; b < nranks; ++b) {
      if (!Linked(a, b)) return;
    }
  }
  complete_ = true;
}

bool ControlGraph::Linked(int a, int b) const {
  if (a == b) return false;
  if (complete_) return true;
  const int nranks = hosts_.nranks();
  const auto up = static_cast<unsigned>(a < b ? b - a : b - a + nranks);
  return std::has_single_bit(up) || std::has_single_bit(static_cast<unsigned>(nranks) - up) ||
         hosts_.SameHost(a, b);
}

std::vector<int> ControlGraph::NextHops(int from, const std::vector<bool>& gone) const {
  const int nranks = hosts_.nranks();
  std::vector<int> next(static_cast<size_t>(nranks), -1);
  std::vector<int> reached = {from};
  std::vector<bool> host_seen(static_cast<size_t>(hosts_.hosts()));
  next[static_cast<size_t>(from)] = from;
  for (size_t i = 0; i < reached.size(); ++i) {
    const int at = reached[i];
    const auto reach = [&](int to) {
      int& hop = next[static_cast<size_t>(to)];
      if (hop >= 0 || gone[static_cast<size_t>(to)]) return;
      hop = at == from ? to : next[static_cast<size_t>(at)];
      reached.push_back(to);
    };
    for (int distance = 1; distance < nranks; distance *= 2) {
      reach((at + distance) % nranks);
      reach((at - distance + nranks) % nranks);
    }
    // The first rank of a host that is reached reaches all others.
    const int host = hosts_.HostOf(at);
    if (host_seen[static_cast<size_t>(host)]) continue;
    host_seen[static_cast<size_t>(host)] = true;
    for (const int to : hosts_.RanksOf(host)) reach(to);
  }
  next[static_cast<size_t>(from)] = -1;
  return next;
}

}  // namespace inccl
