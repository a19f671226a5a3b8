// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a communicator share a host. Equal on all ranks.
#ifndef INCCL_TOPOLOGY_HOST_MAP_H_
#define INCCL_TOPOLOGY_HOST_MAP_H_

#include <cstdint>
#include <span>
#include <vector>

namespace inccl {

// Hosts are numbered by their lowest rank: rank 0 is on host 0.
class HostMap {
 public:
  HostMap() = default;  // no ranks
  // `identities`: one per rank; ranks with equal identities share a host.
  explicit HostMap(std::span<const uint64_t> identities);
  static HostMap OneHost(int nranks);

  int nranks() const { return static_cast<int>(ranks_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  int HostOf(int rank) const { return ranks_[static_cast<size_t>(rank)].host; }
  // The position of a rank among the ranks of its host.
  int LocalIndex(int rank) const { return ranks_[static_cast<size_t>(rank)].local; }
  // The ranks of a host, ascending.
  std::span<const int> RanksOf(int host) const { return members_[static_cast<size_t>(host)]; }
  bool SameHost(int a, int b) const { return HostOf(a) == HostOf(b); }
  int LargestHost() const { return largest_; }  // its number of ranks
  int SmallestHost() const;

  friend bool operator==(const HostMap&, const HostMap&) = default;

 private:
  struct Place {
    int host = 0, local = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Place> ranks_;
  std::vector<std::vector<int>> members_;  // by host
  int largest_ = 0;
};

}  // namespace inccl

#endif  // INCCL_TOPOLOGY_HOST_MAP_H_
