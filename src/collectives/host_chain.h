// SPDX-License-Identifier: Apache-2.0
//
// The hosts in a row that begins or ends with the root's, for broadcast and reduce over two levels.
#ifndef INCCL_COLLECTIVES_HOST_CHAIN_H_
#define INCCL_COLLECTIVES_HOST_CHAIN_H_

#include <span>
#include <vector>

#include "collectives/schedule_builder.h"

namespace inccl {

// A window has as many chunks as the largest host has ranks. Each chunk has a rail: one rank per
// host, which exchanges the chunk with the ranks of the same rail on the neighbouring hosts. So all
// ranks of the largest host use the network, and every host sends and receives a window at most.
class HostChain {
 public:
  // As the rank of `phase` sees it.
  static HostChain From(const PhaseBuilder& phase) { return {phase, 0}; }
  static HostChain To(const PhaseBuilder& phase) { return {phase, 1}; }

  int chunks() const { return hosts_.LargestHost(); }
  bool first() const { return place_ == 0; }
  bool last() const { return place_ == hosts_.hosts() - 1; }
  // The rank on the rail of `chunk`: on this host, on the one before it and on the one after it.
  int Here(int chunk) const { return On(host_, chunk); }
  int Before(int chunk) const { return On(host_ - 1, chunk); }
  int After(int chunk) const { return On(host_ + 1, chunk); }
  std::span<const int> Ranks() const { return hosts_.RanksOf(host_); }  // of this host
  std::vector<int> OthersThan(int rank) const;                          // of this host
  int RanksBefore() const;                                              // on the hosts before

 private:
  HostChain(const PhaseBuilder& phase, int shift);
  int On(int host, int chunk) const;  // host: modulo the number of hosts

  const HostMap& hosts_;
  int host_, place_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_HOST_CHAIN_H_
