// SPDX-License-Identifier: Apache-2.0
//
// Which hosts are near each other, from the round trips that ranks have measured.
#ifndef INCCL_TOPOLOGY_SITES_H_
#define INCCL_TOPOLOGY_SITES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "topology/host_map.h"

namespace inccl {

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

#endif  // INCCL_TOPOLOGY_SITES_H_
