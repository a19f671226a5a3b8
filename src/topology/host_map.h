// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a communicator share a host, and which hosts a site. Equal on all ranks.
#ifndef INCCL_TOPOLOGY_HOST_MAP_H_
#define INCCL_TOPOLOGY_HOST_MAP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inccl {

// Hosts are numbered by their lowest rank: rank 0 is on host 0. Between hosts of different sites
// links are long. Schedules visit the hosts site by site.
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

  // `sites`: by host, in 0..sites-1; rings visit the sites in the order of these numbers. Without
  // it all hosts are on one site.
  void SetSites(std::vector<int> sites);
  int sites() const { return site_count_; }
  int SiteOf(int host) const { return sites_.empty() ? 0 : sites_[static_cast<size_t>(host)]; }
  // The hosts in the order in which schedules visit them: site by site.
  int HostAt(int place) const {
    return order_.empty() ? place : order_[static_cast<size_t>(place)];
  }
  int PlaceOf(int host) const {
    return places_.empty() ? host : places_[static_cast<size_t>(host)];
  }
  // The groups of hierarchical algorithms: hosts, or sites where no host has several ranks, each
  // as a host. One group: there is no hierarchy.
  bool GroupsAreSites() const { return largest_ == 1 && site_count_ > 1; }
  HostMap Groups() const;
  bool HasGroups() const;

  friend bool operator==(const HostMap&, const HostMap&) = default;

 private:
  struct Place {
    int host = 0, local = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Place> ranks_;
  std::vector<std::vector<int>> members_;  // by host
  int largest_ = 0, site_count_ = 1;
  std::vector<int> sites_, order_, places_;  // by host, place, host; empty: one site
};

// Which hosts are near each other, from the round trips that ranks have measured.

// A link between hosts is long from here on: a message takes longer than on any network of a site.
inline constexpr uint32_t kLongRoundTripUs = 1000;
// With more sites, all hosts count as one.
inline constexpr int kMostSites = 64;

// A round trip between two ranks, or hosts.
struct MeasuredLink {
  int a = 0, b = 0;
  uint32_t round_trip_us = 0;
};

// Equal on all ranks. Hosts of a site are linked by short round trips, directly or over others.
struct Sites {
  int count = 1;
  std::vector<int> of_host;  // in 0..count-1, that of rank 0 is 0; empty: one site
  // [a * count + b]: the longest one that was measured between hosts of a and b; 0: none was.
  std::vector<uint32_t> round_trip_us = {0};

  uint32_t RoundTripUs(int a, int b) const {
    const auto row = static_cast<size_t>(a) * static_cast<size_t>(count);
    return round_trip_us[row + static_cast<size_t>(b)];
  }
  uint32_t LongestUs() const;
  friend bool operator==(const Sites&, const Sites&) = default;
};

// `measured`: between ranks, in any order; of several of two hosts the least counts. Sites between
// which nothing was measured are as far from each other as the two farthest. Sites have numbers so
// that a ring in their order is short.
Sites FindSites(const HostMap& hosts, std::span<const MeasuredLink> measured);

}  // namespace inccl

#endif  // INCCL_TOPOLOGY_HOST_MAP_H_
