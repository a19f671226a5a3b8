// SPDX-License-Identifier: Apache-2.0
#include "tuning/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "collectives/schedule.h"
#include "collectives/schedule_builder.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

// Above this, calls cost as much as this.
constexpr uint64_t kMostElements = uint64_t{1} << 30;
constexpr uint64_t kUnitsPerByte = uint64_t{8} * WireBits::kUnit;

// The bytes of elements of `width` 16ths of a bit.
uint64_t Bytes(uint64_t elements, uint64_t width) {
  if (width == 0) return 0;
  return elements <= UINT64_MAX / width ? elements * width / kUnitsPerByte
                                        : elements / kUnitsPerByte * width;
}

uint64_t Nanoseconds(uint64_t items, uint64_t ps) {
  constexpr uint64_t kPerNs = 1000;
  return items <= UINT64_MAX / kMostCostPs ? items * ps / kPerNs : items / kPerNs * ps;
}

// One phase of a call.
struct PhaseWidth {
  uint64_t units = 0;          // of an element, in 16ths of a bit
  bool coded = false;          // by a codec; else sums of elements
  uint64_t pipelined = 0;      // elements that a step handles before the next step
  uint64_t element_bytes = 0;  // uncompressed
};

uint64_t PhaseNs(const CostShape& shape, const PhaseWidth& width, const CostConstants& c) {
  const uint64_t units = width.units + (width.coded ? shape.widening : 0);
  const uint64_t on_chain = 2 * shape.network_hops;  // the latency counts both ends
  const uint64_t further =
      shape.network_messages > on_chain ? shape.network_messages - on_chain : 0;
  const uint64_t link =
      shape.link_elements + shape.waiting_hops * std::min(shape.hop_elements, width.pipelined);
  const uint64_t chain = (shape.network_hops - shape.site_hops) * c.network_latency_ns +
                         shape.site_hops * c.site_latency_ns;
  uint64_t ns = chain + shape.shm_hops * c.shm_latency_ns + further * c.network_message_ns;
  if (BytesUnderWay(c) > 0 && shape.serial_elements > width.pipelined) {
    ns += (shape.serial_elements - 1) / width.pipelined * chain;
  }
  ns += std::max(Nanoseconds(Bytes(link, units), c.network_byte_ps),
                 Nanoseconds(Bytes(shape.site_elements, units),
                             c.site_byte_ps == 0 ? c.network_byte_ps : c.site_byte_ps));
  ns += Nanoseconds(Bytes(shape.shm_elements, units), c.shm_byte_ps);
  if (width.coded) {
    ns += Nanoseconds(shape.encoded_elements, c.encode_element_ps);
    ns += Nanoseconds(shape.decoded_elements, c.decode_element_ps);
    ns += Nanoseconds(shape.hop_sums, c.hop_element_ps);
    ns += Nanoseconds(shape.folded_elements, c.fold_element_ps);
  } else {
    ns += Nanoseconds(shape.added_elements * width.element_bytes, c.reduce_byte_ps);
  }
  return ns;
}

// The algorithm of a side phase (SidePhaseOf in collectives/schedule.cc), and the collective that
// it is.
struct SideWay {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kTwoShot;
};

SideWay SideWayOf(const TunerCall& call, Algorithm algorithm, bool one_shot) {
  SideWay way;
  if (call.collective == Collective::kAllGather) way.collective = Collective::kAllGather;
  if (one_shot) {
    way.algorithm = Algorithm::kOneShot;
  } else if (TraitsOf(algorithm).several_hosts && call.wire.side_phases == 1) {
    way.algorithm = Algorithm::kHierarchical;
  } else if (call.collective == Collective::kAllReduce && call.nranks > kMostDirectRanks &&
             call.wire.side_phases == 1) {
    way.algorithm = Algorithm::kTree;
  }
  return way;
}

uint64_t SideNs(const TunerCall& call, uint64_t count, const SideWay& way,
                const CostConstants& constants) {
  // The agreement of segments is one all-reduce of all of them.
  const bool of_segments = call.collective == Collective::kReduceScatter;
  const uint64_t elements = of_segments ? count * static_cast<uint64_t>(call.nranks) : count;
  CostShape shape = ShapeOf(way.collective, way.algorithm, call.root, elements, *call.hosts);
  shape.widening = shape.serial_elements = 0;
  const PhaseWidth width{.units = call.wire.side, .pipelined = kWindow, .element_bytes = 0};
  return call.wire.side_phases * PhaseNs(shape, width, constants);
}

}  // namespace

WireBits WireBitsOf(const Codec& codec, Collective collective, int nranks) {
  const double bits = codec.UsualBits(collective, nranks);
  constexpr auto kElementsPerUnit = kWindow / static_cast<uint32_t>(kUnitsPerByte);
  const auto side_phases = static_cast<uint32_t>(codec.side_phases().size());
  return {.data = static_cast<uint32_t>(std::lround(bits * WireBits::kUnit)),
          .side = (codec.SideBytes(kWindow) + kElementsPerUnit - 1) / kElementsPerUnit,
          .side_phases = side_phases,
          .shorter = static_cast<uint32_t>(std::lround(codec.ShorterBits() * WireBits::kUnit))};
}

CostEstimate EstimateCost(const TunerCall& call, Algorithm algorithm,
                          const CostConstants& constants) {
  const uint64_t count = std::min<uint64_t>(call.count, kMostElements);
  const uint64_t element = SizeOf(call.type);
  const bool coded = call.compressed && call.wire.data != 0;
  const LongLinks links = LongLinksFor(SlotsFor(call.slots.slice_bytes, call.slots.under_way),
                                       call.hosts, call.slots.under_way);
  const PhaseWidth width{
      .units = coded ? call.wire.data : element * kUnitsPerByte,
      .coded = call.compressed,
      .pipelined = uint64_t{links.slices_per_step} * call.slots.slice_bytes / element,
      .element_bytes = element};
  const CostShape shape = ShapeOf(call.collective, algorithm, call.root, count, *call.hosts);
  CostEstimate estimate{.ns = PhaseNs(shape, width, constants)};
  if (!call.compressed || call.wire.side_phases == 0) return estimate;
  uint64_t side = SideNs(call, count, SideWayOf(call, algorithm, false), constants);
  if (call.collective == Collective::kAllReduce && call.nranks <= kMostDirectRanks) {
    const uint64_t one_shot = SideNs(call, count, SideWayOf(call, algorithm, true), constants);
    estimate.side_one_shot = one_shot < side;
    side = std::min(side, one_shot);
  }
  estimate.ns += side;
  return estimate;
}

namespace {

// Of the elements that pass the links, those of single contributions and of results: `of` of `all`.
struct Share {
  uint64_t of = 0, all = 1;
};

Share Shortened(Collective collective, Algorithm algorithm, uint64_t nranks) {
  const uint64_t hops = nranks - 1;
  if (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot) return {1, 1};
  if (algorithm != Algorithm::kRing) return {};
  if (collective == Collective::kAllGather) return {1, 1};
  if (collective == Collective::kReduceScatter) return {1, hops};
  return {1 + hops, 2 * hops};
}

}  // namespace

bool ShorteningPays(const TunerCall& call, Algorithm algorithm, const CostConstants& constants) {
  const Share share = Shortened(call.collective, algorithm, static_cast<uint64_t>(call.nranks));
  if (share.of == 0 || !call.compressed || call.wire.shorter == 0) return false;
  const uint64_t count = std::min<uint64_t>(call.count, kMostElements);
  const CostShape shape = ShapeOf(call.collective, algorithm, call.root, count, *call.hosts);
  const uint64_t site_byte_ps =
      constants.site_byte_ps == 0 ? constants.network_byte_ps : constants.site_byte_ps;
  const auto link_ns = [&](uint64_t units) {
    return std::max(Nanoseconds(Bytes(shape.link_elements, units), constants.network_byte_ps),
                    Nanoseconds(Bytes(shape.site_elements, units), site_byte_ps));
  };
  const uint64_t work = Nanoseconds(shape.encoded_elements, constants.encode_element_ps) +
                        Nanoseconds(shape.decoded_elements, constants.decode_element_ps) +
                        Nanoseconds(shape.hop_sums, constants.hop_element_ps) +
                        Nanoseconds(shape.folded_elements, constants.fold_element_ps);
  // A rank shortens what it sends, which in an all-reduce is one part less than it encodes, and
  // reads what others send.
  const uint64_t shortened =
      call.collective == Collective::kAllReduce ? count : shape.encoded_elements;
  const uint64_t read = shape.decoded_elements + shape.hop_sums + shape.folded_elements;
  const uint64_t extra = Nanoseconds(shortened + read, constants.shorten_element_ps);
  // The first and the last slice of both phases are shortened and read while the link waits.
  constexpr uint64_t kAlone = 4;
  const uint64_t slice = call.slots.slice_bytes / SizeOf(call.type);
  const uint64_t alone = Nanoseconds(kAlone * slice, constants.shorten_element_ps);
  const uint64_t shorter = std::min(call.wire.shorter, call.wire.data / 2);
  const uint64_t saved = link_ns(shorter) * share.of / share.all;
  // The transport takes time, too, and more over a long link.
  const bool long_links = BytesUnderWay(constants) > 0;
  const uint64_t of = long_links ? 1 : 2, all = long_links ? 2 : 3;
  return saved > alone && all * (work + extra) <= of * (link_ns(call.wire.data) - saved);
}

// The shapes of the schedules, one function per algorithm. docs/algorithms.md has the formulas;
// tests/tuning/cost_model_test.cc counts the schedules themselves.

namespace {

uint64_t CeilDiv(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

// Bits by which a sum of `contributions` is wider than one of them.
uint64_t GrowthOf(uint64_t contributions) {
  return contributions <= 1 ? 0 : static_cast<uint64_t>(std::bit_width(contributions - 1));
}

uint64_t FloorLog2(uint64_t value) { return static_cast<uint64_t>(std::bit_width(value)) - 1; }

// The parts into which a window is dealt. Those that get no superblock are skipped.
struct Parts {
  Parts(uint64_t count, uint64_t parts) {
    const uint64_t superblocks = CeilDiv(count, kSuperblock);
    used = std::min(parts, superblocks);
    elements = std::min(count, CeilDiv(superblocks, parts) * kSuperblock);
  }
  uint64_t used, elements;  // of the largest part
};

class Shaper {
 public:
  Shaper(Collective collective, int root, uint64_t count, const HostMap& hosts)
      : map_(hosts),
        collective_(collective),
        root_host_(hosts.HostOf(root)),
        count_(count),
        n_(static_cast<uint64_t>(hosts.nranks())),
        hosts_(static_cast<uint64_t>(hosts.hosts())),
        largest_(static_cast<uint64_t>(hosts.LargestHost())),
        smallest_(n_),
        sites_(static_cast<size_t>(hosts.sites())) {
    for (int host = 0; host < hosts.hosts(); ++host) {
      smallest_ = std::min(smallest_, Size(host));
      Site& site = sites_[Index(hosts.SiteOf(host))];
      ++site.hosts;
      site.ranks += Size(host);
    }
  }

  CostShape Of(Algorithm algorithm) {
    switch (collective_) {
      case Collective::kAllReduce: AllReduce(algorithm); break;
      case Collective::kReduceScatter:
      case Collective::kAllGather: Segments(algorithm); break;
      case Collective::kBroadcast:
      case Collective::kReduce: Rooted(algorithm); break;
      case Collective::kAllToAll:
      case Collective::kGather:
      case Collective::kScatter: break;  // of one algorithm
    }
    if (shape_.hop_elements > 0) {
      const uint64_t busy = shape_.link_elements / shape_.hop_elements;
      shape_.waiting_hops = shape_.network_hops > busy ? shape_.network_hops - busy : 0;
    }
    if (sites_.size() == 1) shape_.site_elements = shape_.site_hops = 0;
    return shape_;
  }

 private:
  struct Site {
    uint64_t hosts = 0, ranks = 0;
  };

  uint64_t Size(int host) const { return map_.RanksOf(host).size(); }
  // So many of the hops between hosts go to other sites.
  void Cross(uint64_t hops) {
    shape_.site_hops = shape_.network_hops - std::min(hops, shape_.network_hops);
  }

  void AllReduce(Algorithm algorithm) {
    switch (algorithm) {
      case Algorithm::kRing: return AllReduceRing();
      case Algorithm::kTree: return AllReduceTree();
      case Algorithm::kRecursiveDoubling: return AllReduceDoubling();
      case Algorithm::kOneShot: return AllReduceOneShot();
      case Algorithm::kHierarchical: return AllReduceHierarchical();
      case Algorithm::kTwoShot:
      case Algorithm::kEnd: return AllReduceTwoShot();
    }
  }

  void AllReduceOneShot() {
    shape_.network_hops = 1;
    shape_.serial_elements = count_;
    shape_.network_messages = 2 * (n_ - smallest_);
    for (int host = 0; host < map_.hosts(); ++host) {
      AtLeast(&shape_.link_elements, Size(host) * (n_ - Size(host)) * count_);
    }
    for (const Site& site : sites_) {
      AtLeast(&shape_.site_elements, site.ranks * (n_ - site.ranks) * count_);
    }
    shape_.shm_elements = (largest_ - 1) * count_;
    shape_.added_elements = (n_ - 1) * count_;
    shape_.encoded_elements = 2 * count_;  // its input, and the whole result
    shape_.folded_elements = (n_ - 1) * count_;
    shape_.decoded_elements = count_;
  }

  void AllReduceTwoShot() {
    const Parts parts(count_, n_);
    shape_.network_hops = 2;
    std::vector<uint64_t> of_site(sites_.size());
    for (int host = 0; host < map_.hosts(); ++host) {
      const uint64_t size = Size(host), others = n_ - size;
      uint64_t owned = 0;  // by ranks of this host
      for (const int rank : map_.RanksOf(host)) {
        if (static_cast<uint64_t>(rank) < parts.used) ++owned;
      }
      of_site[Index(map_.SiteOf(host))] += owned;
      const uint64_t foreign = parts.used - owned;
      AtLeast(&shape_.link_elements, (size * foreign + owned * others) * parts.elements);
      AtLeast(&shape_.network_messages, 2 * (foreign + (owned > 0 ? others : 0)));
      if (owned > 0) AtLeast(&shape_.shm_elements, (size + owned - 2) * parts.elements);
    }
    for (size_t site = 0; site < sites_.size(); ++site) {
      const uint64_t ranks = sites_[site].ranks, owned = of_site[site];
      AtLeast(&shape_.site_elements,
              (ranks * (parts.used - owned) + owned * (n_ - ranks)) * parts.elements);
    }
    shape_.added_elements = (n_ - 1) * parts.elements;
    shape_.encoded_elements = count_ + parts.elements;
    shape_.folded_elements = (n_ - 1) * parts.elements;
    shape_.decoded_elements = count_;
  }

  // A ring over all parts, once or twice. A rank that is alone on its host has both neighbours on
  // others.
  void Ring(uint64_t rounds, uint64_t parts, uint64_t part_elements) {
    const uint64_t hops = rounds * (n_ - 1);
    // The chain of dependent messages leaves out `rounds` edges in a row, if it can local ones.
    const uint64_t local = std::min(rounds, largest_ - 1);
    shape_.network_hops = rounds * hosts_ - (rounds - local);
    shape_.shm_hops = hops - shape_.network_hops;
    // Likewise edges inside a site.
    uint64_t largest_site = 0;
    for (const Site& site : sites_) AtLeast(&largest_site, site.ranks);
    Cross(rounds * sites_.size() - (rounds - std::min(rounds, largest_site - 1)));
    const uint64_t messages = rounds * std::min(parts, n_ - 1);
    shape_.network_messages = messages * (smallest_ == 1 ? 2 : 1);
    shape_.link_elements = messages * part_elements;
    shape_.site_elements = shape_.link_elements;
    shape_.hop_elements = shape_.serial_elements = part_elements;
    if (largest_ > 1) shape_.shm_elements = messages * part_elements;
  }

  void AllReduceRing() {
    const Parts parts(count_, n_);
    Ring(2, parts.used, parts.elements);
    shape_.added_elements = (n_ - 1) * parts.elements;
    shape_.encoded_elements = parts.elements;
    shape_.hop_sums = (n_ - 1) * parts.elements;
    shape_.decoded_elements = count_;
    // The average of log2(1 .. n-1), in the first of two rounds.
    shape_.widening = (GrowthOf(n_) > 0 ? GrowthOf(n_) - 1 : 0) * WireBits::kUnit / 2;
  }

  // The places, host by host, between which a message passes.
  struct Traffic {
    Traffic(const std::vector<int>& places, const HostMap& hosts)
        : map(hosts),
          host_at(places),
          sent(static_cast<size_t>(hosts.hosts())),
          received(sent),
          left(static_cast<size_t>(hosts.sites())),
          entered(left),
          messages(places.size()),
          local(places.size()) {}
    bool Crosses(size_t from, size_t to) const { return host_at[from] != host_at[to]; }
    size_t SiteAt(size_t place) const { return Index(map.SiteOf(host_at[place])); }
    bool Leaves(size_t from, size_t to) const { return SiteAt(from) != SiteAt(to); }
    void Send(size_t from, size_t to) {
      if (!Crosses(from, to)) {
        ++local[to];
        return;
      }
      if (Leaves(from, to)) {
        ++left[SiteAt(from)];
        ++entered[SiteAt(to)];
      }
      ++sent[Index(host_at[from])];
      ++received[Index(host_at[to])];
      ++messages[from];
      ++messages[to];
    }
    static uint64_t Most(const std::vector<uint64_t>& counts) {
      return *std::max_element(counts.begin(), counts.end());
    }

    const HostMap& map;
    const std::vector<int>& host_at;
    std::vector<uint64_t> sent, received;  // by host
    std::vector<uint64_t> left, entered;   // by site
    std::vector<uint64_t> messages;        // between hosts, by place
    std::vector<uint64_t> local;           // received inside the host, by place
  };

  // All messages of `traffic` have as many elements.
  void Take(const Traffic& traffic, uint64_t elements) {
    shape_.network_messages = Traffic::Most(traffic.messages);
    shape_.link_elements =
        std::max(Traffic::Most(traffic.sent), Traffic::Most(traffic.received)) * elements;
    shape_.site_elements =
        std::max(Traffic::Most(traffic.left), Traffic::Most(traffic.entered)) * elements;
    shape_.shm_elements = Traffic::Most(traffic.local) * elements;
  }

  // Two trees over the ranks host by host, half of the data up and down each.
  void AllReduceTree() {
    const std::vector<int> host_at = HostsByPlace();
    const Parts parts(count_, 2);
    uint64_t left = 0;  // sites, on the longest chain
    Traffic traffic(host_at, map_);
    for (int tree = 0; tree < static_cast<int>(parts.used); ++tree) {
      std::vector<int> parent(n_);
      for (size_t place = 0; place < n_; ++place) {
        parent[place] = DoubleTreeNode(map_.nranks(), tree, static_cast<int>(place)).parent;
      }
      for (size_t place = 0; place < n_; ++place) {
        uint64_t crossed = 0, leaves = 0, depth = 0;
        for (size_t at = place; parent[at] >= 0; at = Index(parent[at]), ++depth) {
          crossed += traffic.Crosses(at, Index(parent[at])) ? 1 : 0;
          leaves += traffic.Leaves(at, Index(parent[at])) ? 1 : 0;
        }
        AtLeast(&left, 2 * leaves);
        if (2 * crossed >= shape_.network_hops) {
          AtLeast(&shape_.network_hops, 2 * crossed);
          AtLeast(&shape_.shm_hops, 2 * (depth - crossed));
        }
        if (parent[place] < 0) continue;
        traffic.Send(place, Index(parent[place]));
        traffic.Send(Index(parent[place]), place);
      }
    }
    Cross(left);
    Take(traffic, parts.elements);
    shape_.hop_elements = std::min<uint64_t>(2, n_ - 1) * parts.elements;
    shape_.added_elements = count_;
    shape_.encoded_elements = count_ / 2;
    shape_.hop_sums = count_;
    shape_.decoded_elements = count_;
    shape_.widening = GrowthOf(n_) * WireBits::kUnit / 4;
  }

  // Rounds at distance 1, 2, 4, ... over the places host by host. If n is no power of two, a
  // message to every second place before and back after.
  void AllReduceDoubling() {
    const std::vector<int> host_at = HostsByPlace();
    const uint64_t power = std::bit_floor(n_), extra = n_ - power;
    const auto place_of = [&](uint64_t i) { return i < extra ? 2 * i : i + extra; };
    Traffic traffic(host_at, map_);
    struct Chain {
      uint64_t left = 0, crossed = 0, all = 0;
    };
    std::vector<Chain> chains(n_);  // the longest that have arrived at each place
    const auto send = [&](size_t from, size_t to, const Chain& chain) {
      traffic.Send(from, to);
      AtLeast(&chains[to].left, chain.left + (traffic.Leaves(from, to) ? 1 : 0));
      AtLeast(&chains[to].crossed, chain.crossed + (traffic.Crosses(from, to) ? 1 : 0));
      AtLeast(&chains[to].all, chain.all + 1);
    };
    for (uint64_t i = 0; i < extra; ++i) send(2 * i + 1, 2 * i, {});
    uint64_t growth = 0, rounds = 0;
    for (uint64_t distance = 1; distance < power; distance *= 2, ++rounds) {
      const std::vector<Chain> before(chains.begin(), chains.end());
      for (uint64_t i = 0; i < power; ++i) {
        const uint64_t from = place_of(i);
        send(from, place_of(i ^ distance), before[from]);
      }
      growth += GrowthOf(distance);
    }
    for (uint64_t i = 0; i < extra; ++i) send(2 * i, 2 * i + 1, chains[2 * i]);
    Chain longest;
    for (const Chain& chain : chains) {
      AtLeast(&longest.left, chain.left);
      AtLeast(&longest.crossed, chain.crossed);
      AtLeast(&longest.all, chain.all);
    }
    shape_.network_hops = longest.crossed;
    Cross(longest.left);
    shape_.serial_elements = count_;
    shape_.shm_hops = longest.all - longest.crossed;
    Take(traffic, count_);
    shape_.added_elements = longest.all * count_;
    shape_.encoded_elements = 2 * count_;  // its input, and the whole result
    shape_.hop_sums = (longest.all - 1) * count_;
    shape_.decoded_elements = count_;
    shape_.widening = growth * WireBits::kUnit / std::max<uint64_t>(1, rounds);
  }

  // Every group owns as many parts as the largest group has ranks.
  void AllReduceHierarchical() {
    const HostMap groups = map_.Groups();
    const auto most = static_cast<uint64_t>(groups.LargestHost());
    const auto others = static_cast<uint64_t>(groups.hosts() - 1);
    const Parts parts(count_, (others + 1) * most);
    InGroups(2, 2);
    std::vector<uint64_t> of_site(sites_.size());  // parts
    for (int group = 0; group < groups.hosts(); ++group) {
      const uint64_t size = groups.RanksOf(group).size(), before = Index(group) * most;
      const uint64_t owned = parts.used > before ? std::min(parts.used - before, most) : 0;
      const uint64_t foreign = parts.used - owned;
      const uint64_t per_rank = CeilDiv(parts.used, size), own_per_rank = CeilDiv(owned, size);
      Send({.crossing = (foreign + owned * others) * parts.elements,
            .inside = ((size - 1) * per_rank + parts.used - parts.used / size) * parts.elements,
            .crossing_messages = 2 * (CeilDiv(foreign, size) + own_per_rank * others),
            .inside_messages = 2 * ((size - 1) * per_rank + parts.used - parts.used / size),
            .ranks = size});
      of_site[Index(map_.SiteOf(map_.HostOf(groups.RanksOf(group).front())))] += owned;
      const uint64_t added = ((size - 1) * per_rank + others * own_per_rank) * parts.elements;
      AtLeast(&shape_.added_elements, added);
      AtLeast(&shape_.encoded_elements, count_ + per_rank * parts.elements);
      AtLeast(&shape_.folded_elements, added);
    }
    for (size_t site = 0; site < sites_.size(); ++site) {
      const uint64_t inside = GroupsOf(sites_[site]), owned = of_site[site];
      AtLeast(&shape_.site_elements,
              (inside * (parts.used - owned) + owned * (others + 1 - inside)) * parts.elements);
    }
    shape_.decoded_elements = count_;
    shape_.widening = GrowthOf(most) * WireBits::kUnit / 2;
  }

  // So many hops from group to group and inside a group, which is a host or a site.
  void InGroups(uint64_t crossing, uint64_t inside) {
    shape_.network_hops = crossing;
    if (map_.GroupsAreSites()) {
      shape_.network_hops += inside;
      Cross(crossing);
    } else {
      shape_.shm_hops = inside;
    }
  }
  uint64_t GroupsOf(const Site& site) const { return map_.GroupsAreSites() ? 1 : site.hosts; }

  // What one group sends or receives: all of it to other groups, each rank inside it.
  struct GroupTraffic {
    uint64_t crossing = 0, inside = 0;                    // elements
    uint64_t crossing_messages = 0, inside_messages = 0;  // of a rank
    uint64_t ranks = 1;
  };
  void Send(const GroupTraffic& traffic) {
    if (map_.GroupsAreSites()) {
      AtLeast(&shape_.link_elements, CeilDiv(traffic.crossing, traffic.ranks) + traffic.inside);
      AtLeast(&shape_.network_messages, traffic.crossing_messages + traffic.inside_messages);
    } else {
      AtLeast(&shape_.link_elements, traffic.crossing);
      AtLeast(&shape_.network_messages, traffic.crossing_messages);
      AtLeast(&shape_.shm_elements, traffic.inside);
    }
  }

  // Reduce-scatter and all-gather: every rank has a segment of `count_` elements.
  void Segments(Algorithm algorithm) {
    const bool sums = collective_ == Collective::kReduceScatter;
    shape_.added_elements = sums ? (n_ - 1) * count_ : 0;
    shape_.encoded_elements = sums ? n_ * count_ : count_;
    shape_.decoded_elements = sums ? count_ : n_ * count_;
    if (algorithm == Algorithm::kRing) {
      Ring(1, n_, count_);
      if (!sums) return;
      shape_.encoded_elements = count_;
      shape_.hop_sums = (n_ - 1) * count_;
      shape_.widening = (GrowthOf(n_) > 0 ? GrowthOf(n_) - 1 : 0) * WireBits::kUnit;
      return;
    }
    shape_.folded_elements = shape_.added_elements;
    if (algorithm == Algorithm::kHierarchical) return SegmentsInGroups(sums);
    shape_.network_hops = 1;
    for (int host = 0; host < map_.hosts(); ++host) {
      const uint64_t size = Size(host), others = n_ - size;
      AtLeast(&shape_.link_elements, size * others * count_);
      AtLeast(&shape_.network_messages, 2 * others);
      AtLeast(&shape_.shm_elements, (size - 1) * count_);
    }
    for (const Site& site : sites_) {
      AtLeast(&shape_.site_elements, site.ranks * (n_ - site.ranks) * count_);
    }
  }

  void SegmentsInGroups(bool sums) {
    const HostMap groups = map_.Groups();
    const auto count_of_groups = static_cast<uint64_t>(groups.hosts());
    InGroups(1, 1);
    for (int group = 0; group < groups.hosts(); ++group) {
      const uint64_t size = groups.RanksOf(group).size(), others = n_ - size;
      const uint64_t rails = CeilDiv(others, size);
      const uint64_t inside = sums ? (size - 1) * (1 + rails) : n_ - n_ / size;
      Send({.crossing = std::max(others, size * (count_of_groups - 1)) * count_,
            .inside = inside * count_,
            .crossing_messages = rails + count_of_groups - 1,
            .inside_messages = 2 * inside,
            .ranks = size});
    }
    for (const Site& site : sites_) {
      const uint64_t inside = GroupsOf(site), others = n_ - site.ranks;
      AtLeast(&shape_.site_elements,
              std::max(inside * others, site.ranks * (count_of_groups - inside)) * count_);
    }
    if (sums) {
      shape_.widening = GrowthOf(static_cast<uint64_t>(groups.LargestHost())) * WireBits::kUnit;
    }
  }

  // Broadcast, and reduce, which is the same backwards.
  void Rooted(Algorithm algorithm) {
    const bool sums = collective_ == Collective::kReduce;
    const uint64_t local = Size(root_host_), others = n_ - local;
    shape_.added_elements = count_;
    if (largest_ > 1) shape_.shm_elements = count_;
    switch (algorithm) {
      case Algorithm::kRing:
        shape_.network_hops = hosts_ - 1;
        shape_.shm_hops = n_ - hosts_;
        shape_.network_messages = smallest_ == 1 && hosts_ > 2 ? 2 : 1;
        shape_.link_elements = shape_.hop_elements = shape_.site_elements = count_;
        Cross(SitesInRow(sums));
        break;
      case Algorithm::kTree:
        shape_.network_hops = FloorLog2(hosts_);
        shape_.shm_hops = FloorLog2(largest_);
        // The root has two children, others also a parent; the fifth host is the second child of
        // one.
        shape_.network_messages = hosts_ >= 5 ? 3 : std::min<uint64_t>(hosts_ - 1, 2);
        shape_.link_elements = shape_.hop_elements = std::min<uint64_t>(hosts_ - 1, 2) * count_;
        shape_.added_elements = 2 * count_;
        if (sums) shape_.shm_elements = std::min<uint64_t>(largest_ - 1, 2) * count_;
        TreeOfHosts();
        break;
      case Algorithm::kHierarchical:
        shape_.network_hops = hosts_ - 1;
        shape_.shm_hops = 2;
        shape_.network_messages = (hosts_ > 2 ? 2 : 1) * CeilDiv(largest_, smallest_);
        shape_.link_elements = shape_.hop_elements = shape_.site_elements = count_;
        if (sums) shape_.shm_elements = 2 * (count_ - count_ / largest_);
        Cross(SitesInRow(sums));
        break;
      default:
        shape_.network_hops = 1;
        shape_.network_messages = others;
        shape_.link_elements = others * count_;
        shape_.site_elements = (n_ - sites_[Index(map_.SiteOf(root_host_))].ranks) * count_;
        shape_.added_elements = (n_ - 1) * count_;
        shape_.shm_elements = (sums ? local - 1 : std::min<uint64_t>(local - 1, 1)) * count_;
        break;
    }
    if (!sums) shape_.added_elements = 0;
  }

  // How often the hosts in a row change sites. The row begins with the root's, or ends with it: a
  // reduction.
  uint64_t SitesInRow(bool ends) const {
    const auto at = static_cast<uint64_t>(map_.PlaceOf(root_host_)) + (ends ? 1 : 0);
    const auto site_at = [&](uint64_t place) {
      return map_.SiteOf(map_.HostAt(static_cast<int>(place % hosts_)));
    };
    return sites_.size() - (site_at(at) != site_at(at + hosts_ - 1) ? 1 : 0);
  }

  // The binary tree of RootedTreeNode over the places of hosts.
  void TreeOfHosts() {
    if (sites_.size() == 1) return;
    const auto site_at = [&](uint64_t i) {
      const uint64_t place = (Index(map_.PlaceOf(root_host_)) + i) % hosts_;
      return Index(map_.SiteOf(map_.HostAt(static_cast<int>(place))));
    };
    std::vector<uint64_t> left(hosts_), out(sites_.size()), in(sites_.size());
    for (uint64_t i = 1; i < hosts_; ++i) {
      const uint64_t parent = (i - 1) / 2;
      const bool leaves = site_at(parent) != site_at(i);
      left[i] = left[parent] + (leaves ? 1 : 0);
      out[site_at(parent)] += leaves ? 1 : 0;
      in[site_at(i)] += leaves ? 1 : 0;
    }
    Cross(*std::max_element(left.begin(), left.end()));
    shape_.site_elements = std::max(Traffic::Most(out), Traffic::Most(in)) * count_;
  }

  static size_t Index(int value) { return static_cast<size_t>(value); }
  static void AtLeast(uint64_t* value, uint64_t other) { *value = std::max(*value, other); }

  // The host of each place of HostOrder.
  std::vector<int> HostsByPlace() const {
    std::vector<int> host_at;
    for (int place = 0; place < map_.hosts(); ++place) {
      const int host = map_.HostAt(place);
      host_at.insert(host_at.end(), Size(host), host);
    }
    return host_at;
  }

  const HostMap& map_;
  const Collective collective_;
  const int root_host_;
  const uint64_t count_, n_, hosts_, largest_;
  uint64_t smallest_;
  std::vector<Site> sites_;
  CostShape shape_;
};

}  // namespace

CostShape ShapeOf(Collective collective, Algorithm algorithm, int root, uint64_t count,
                  const HostMap& hosts) {
  return Shaper(collective, root, count, hosts).Of(algorithm);
}

}  // namespace inccl
