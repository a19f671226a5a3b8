// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bootstrap/host.h"
#include "inccl/ccl.h"
#include "perf/support/agree.h"
#include "perf/support/cause.h"
#include "perf/support/statistics.h"
#include "perf/support/streaming.h"
#include "tools/tune/codec_costs.h"

namespace inccl::tools {
namespace {

constexpr double kNsPerUs = 1000, kPsPerNs = 1000;
constexpr size_t kSmall = 8;
constexpr size_t kLargeNetwork = size_t{4} << 20, kLargeShm = size_t{1} << 20;
constexpr int kWarmUp = 3;

struct DestroyComm {
  void operator()(ccl_comm_t comm) const { ccl_comm_destroy(comm); }
};
using Comm = std::unique_ptr<ccl_comm, DestroyComm>;

Status From(ccl_result_t result, const char* what, ccl_comm_t comm) {
  if (result == CCL_SUCCESS) return {};
  return {static_cast<Code>(result), fmt::format("{}: {}", what, ccl_get_last_error(comm))};
}

Result<Comm> Join(perf::World& world) {
  const Result<ccl_unique_id_t> id = perf::ShareUniqueId(world);
  if (!id.ok()) return id.status();
  ccl_comm_t comm = nullptr;
  const Status s = From(ccl_comm_init_rank(&comm, world.size(), *id, world.rank()),
                        "ccl_comm_init_rank", nullptr);
  if (!s.ok()) return s;
  return Comm(comm);
}

// Times patterns of messages among the ranks.
class Patterns {
 public:
  Patterns(perf::World& world, ccl_comm_t comm, uint64_t iterations)
      : world_(world),
        comm_(comm),
        iterations_(iterations),
        send_(kLargeNetwork),
        recv_(kLargeNetwork) {}

  // From rank 0 to `peer`, in one group, and a small one back.
  struct Burst {
    int messages = 1;
    size_t bytes = kSmall;
  };
  // The times of two bursts, which take turns.
  Result<std::pair<double, double>> RoundTrips(int peer, const Burst& first, const Burst& second) {
    const auto round_trip = [&](const Burst& burst) {
      if (world_.rank() == 0) {
        if (Status s = Grouped(burst.messages, burst.bytes, peer, -1); !s.ok()) return s;
        return Grouped(1, kSmall, -1, peer);
      }
      if (world_.rank() != peer) return Status();
      if (Status s = Grouped(burst.messages, burst.bytes, -1, 0); !s.ok()) return s;
      return Grouped(1, kSmall, 0, -1);
    };
    Result<std::vector<double>> times =
        Time({[&] { return round_trip(first); }, [&] { return round_trip(second); }});
    if (!times.ok()) return times.status();
    return std::pair((*times)[0], (*times)[1]);
  }

  // Ranks of equal index on consecutive hosts send to the next host and receive from the one
  // before, where both have such a rank.
  Result<double> Exchange(const HostMap& hosts, size_t rails) {
    const int host = hosts.HostOf(world_.rank());
    const auto index = static_cast<size_t>(hosts.LocalIndex(world_.rank()));
    const int next = (host + 1) % hosts.hosts(), last = (host + hosts.hosts() - 1) % hosts.hosts();
    Result<std::vector<double>> times = Time({[&] {
      if (index >= rails) return Status();
      return Grouped(1, kLargeNetwork, hosts.RanksOf(next)[index], hosts.RanksOf(last)[index]);
    }});
    if (!times.ok()) return times.status();
    return times->front();
  }

 private:
  // Messages to rank `to` and from rank `from`; -1: none.
  Status Grouped(int messages, size_t bytes, int to, int from) {
    Status status = From(ccl_group_start(), "ccl_group_start", comm_);
    for (int i = 0; i < messages && status.ok(); ++i) {
      if (to >= 0) {
        status =
            From(ccl_send(send_.data(), bytes, CCL_UINT8, to, comm_, nullptr), "ccl_send", comm_);
      }
      if (from >= 0 && status.ok()) {
        status =
            From(ccl_recv(recv_.data(), bytes, CCL_UINT8, from, comm_, nullptr), "ccl_recv", comm_);
      }
    }
    const Status ended = From(ccl_group_end(), "ccl_group_end", comm_);
    return status.ok() ? ended : status;
  }

  // The first quartile of the slowest rank's times, in ns, of patterns that take turns. The first
  // turns do not count. Other work of the machines makes times longer only.
  Result<std::vector<double>> Time(const std::vector<std::function<Status()>>& patterns) {
    std::vector<std::vector<double>> mine(patterns.size());
    for (uint64_t i = 0; i < iterations_ + kWarmUp; ++i) {
      for (size_t p = 0; p < patterns.size(); ++p) {
        if (Status s = world_.Barrier(); !s.ok()) return perf::WithCause(s, comm_);
        const double start = perf::SharedMicroseconds();
        if (Status s = patterns[p](); !s.ok()) return s;
        if (i >= kWarmUp) mine[p].push_back((perf::SharedMicroseconds() - start) * kNsPerUs);
      }
    }
    std::vector<double> quartiles;
    for (const std::vector<double>& of_pattern : mine) {
      std::vector<double> all(of_pattern.size() * static_cast<size_t>(world_.size()));
      const Status s = world_.AllGather(std::as_bytes(std::span(of_pattern)),
                                        std::as_writable_bytes(std::span(all)));
      if (!s.ok()) return s;
      constexpr double kFirstQuartile = 0.25;
      quartiles.push_back(perf::Percentile(
          perf::CombineRanks(all, of_pattern.size(), perf::Average::kMax), kFirstQuartile));
    }
    return quartiles;
  }

  perf::World& world_;
  const ccl_comm_t comm_;
  const uint64_t iterations_;
  std::vector<std::byte> send_, recv_;
};

void Add(const char* name, double value, MeasuredCosts* costs) {
  for (const CostField& field : kCostFields) {
    if (std::string(name) != field.name) continue;
    (*costs)[name] =
        static_cast<uint64_t>(std::clamp(value + 0.5, 0.0, static_cast<double>(field.most)));
  }
}

}  // namespace

void AddNetworkCosts(const NetworkTimes& times, MeasuredCosts* costs) {
  Add("network_latency_ns", times.round_trip / 2, costs);
  Add("network_message_ns", (times.burst_round_trip - times.round_trip) / (kBurst - 1), costs);
  Add("network_byte_ps",
      (times.exchange - times.round_trip / 2) * kPsPerNs / static_cast<double>(times.exchanged),
      costs);
}

void AddShmCosts(const ShmTimes& times, MeasuredCosts* costs) {
  Add("shm_latency_ns", times.round_trip / 2, costs);
  Add("shm_byte_ps",
      (times.large_round_trip - times.round_trip) * kPsPerNs / static_cast<double>(times.large),
      costs);
}

Result<HostMap> HostsOf(perf::World& world) {
  const char* const given = std::getenv("INCCL_HOSTID");
  Result<uint64_t> mine = bootstrap::HostId(given == nullptr ? "" : given);
  if (!mine.ok()) return mine.status();
  Result<std::vector<uint64_t>> all = perf::Gather(world, *mine);
  if (!all.ok()) return all.status();
  return HostMap(*all);
}

Result<MeasuredCosts> MeasureCosts(perf::World& world, const HostMap& hosts,
                                   const CostOptions& options) {
  if (hosts.hosts() == 1) {
    return InvalidUsage("--network: all ranks are on one host; start them on several");
  }
  Result<Comm> comm = Join(world);
  if (!comm.ok()) return comm.status();
  Patterns patterns(world, comm->get(), options.iterations);
  size_t rails = SIZE_MAX;
  for (int host = 0; host < hosts.hosts(); ++host) {
    rails = std::min(rails, hosts.RanksOf(host).size());
  }
  MeasuredCosts costs;
  const auto remote =
      patterns.RoundTrips(hosts.RanksOf(1).front(), {.messages = 1}, {.messages = kBurst});
  if (!remote.ok()) return remote.status();
  const Result<double> exchange = patterns.Exchange(hosts, rails);
  if (!exchange.ok()) return exchange.status();
  AddNetworkCosts({remote->first, remote->second, *exchange, rails * kLargeNetwork}, &costs);
  if (hosts.RanksOf(0).size() > 1) {
    const auto local =
        patterns.RoundTrips(hosts.RanksOf(0)[1], {.bytes = kSmall}, {.bytes = kLargeShm});
    if (!local.ok()) return local.status();
    AddShmCosts({local->first, local->second, kLargeShm}, &costs);
  }
  // One rank at work: the others would take its share of memory bandwidth, or of a core.
  CodecTimes plain, coded;
  if (world.rank() == 0) {
    Result<CodecTimes> times = TimeCodec("none", options.iterations);
    if (times.ok()) plain = *times;
    if (times.ok() && options.codec != "none") times = TimeCodec(options.codec, options.iterations);
    if (!times.ok()) return times.status();
    coded = *times;
  }
  for (CodecTimes* times : {&plain, &coded}) {
    const Status s = world.Broadcast(std::as_writable_bytes(std::span(times, 1)));
    if (!s.ok()) return perf::WithCause(s, comm->get());
  }
  Add("reduce_byte_ps", plain.hop_ps / sizeof(float), &costs);
  if (options.codec != "none") {
    Add("encode_element_ps", coded.encode_ps, &costs);
    Add("decode_element_ps", coded.decode_ps, &costs);
    Add("hop_element_ps", coded.hop_ps, &costs);
    Add("fold_element_ps", coded.fold_ps, &costs);
    if (coded.shorten_ps > 0) Add("shorten_element_ps", coded.shorten_ps, &costs);
  }
  return costs;
}

}  // namespace inccl::tools
