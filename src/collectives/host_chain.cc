// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_chain.h"

#include <cstddef>

namespace inccl {

HostChain::HostChain(const PhaseBuilder& phase, int shift)
    : hosts_(*phase.hosts()), host_(hosts_.HostOf(phase.rank())) {
  const int n = hosts_.hosts(), begin = hosts_.HostOf(phase.root()) + shift;
  place_ = (host_ - begin + n) % n;
}

std::vector<int> HostChain::OthersThan(int rank) const {
  std::vector<int> others;
  for (const int member : Ranks()) {
    if (member != rank) others.push_back(member);
  }
  return others;
}

int HostChain::RanksBefore() const {
  const int n = hosts_.hosts();
  int ranks = 0;
  for (int back = 1; back <= place_; ++back) {
    ranks += static_cast<int>(hosts_.RanksOf((host_ - back + n) % n).size());
  }
  return ranks;
}

int HostChain::On(int host, int chunk) const {
  const int n = hosts_.hosts();
  const std::span<const int> ranks = hosts_.RanksOf((host + n) % n);
  return ranks[static_cast<size_t>(chunk) % ranks.size()];
}

}  // namespace inccl
