// SPDX-License-Identifier: Apache-2.0
#include "communicator/host_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "compress/codec.h"

namespace inccl {
namespace {

constexpr size_t kCounts = 3;  // in front of HostSums::stats_

}  // namespace

Status HostSums::Check(const Call& call) const {
  const std::string& spec = call.codec->spec();
  for (int host = 0; host < hosts_.hosts(); ++host) {
    const std::span<const int> ranks = hosts_.RanksOf(host), first = hosts_.RanksOf(0);
    if (call.collective != Collective::kReduceScatter) continue;
    if (ranks.size() != first.size()) {
      return InvalidArgument(
          fmt::format("codec {}: the host of rank {} has {} ranks and that of rank {} has {}: a {} "
                      "of sums of hosts needs equally many",
                      spec, first[0], first.size(), ranks[0], ranks.size(), Name(call.collective)));
    }
    if (ranks.back() - ranks.front() + 1 != static_cast<int>(ranks.size())) {
      return InvalidArgument(
          fmt::format("codec {}: ranks {} and {} share a host, but not with all ranks between: a "
                      "{} of sums of hosts needs ranks in the order of the hosts",
                      spec, ranks.front(), ranks.back(), Name(call.collective)));
    }
  }
  return Status::Ok();
}

std::vector<int> HostSums::Members(Group group) const {
  std::vector<int> members;
  for (int rank = 0; rank < hosts_.nranks(); ++rank) {
    if (group == Group::kAll || (group == Group::kHost && hosts_.SameHost(rank, rank_)) ||
        (group == Group::kRail && hosts_.LocalIndex(rank) == hosts_.LocalIndex(rank_))) {
      members.push_back(rank);
    }
  }
  return members;
}

std::span<HostSums::Part> HostSums::PartsOf(const Call& call) {
  parts_.clear();
  compresses_ = false;
  if (call.collective == Collective::kAllReduce) {
    AppendAllReduce(call);
  } else {
    AppendReduceScatter(call);
  }
  return parts_;
}

HostSums::Part HostSums::Inside(const Call& call, Collective collective, const std::byte* from,
                                std::byte* to, uint64_t count, int root) const {
  Part part{Group::kHost, call};
  part.call.collective = collective;
  part.call.nranks = static_cast<int>(hosts_.RanksOf(hosts_.HostOf(rank_)).size());
  part.call.rank = hosts_.LocalIndex(rank_);
  part.call.root = root;
  part.call.count = count;
  part.call.send = from;
  part.call.recv = to;
  part.call.codec = nullptr;
  part.call.stats = nullptr;
  if (!Even()) part.call.average_of = hosts_.nranks();
  return part;
}

// Hosts of equal size average their sums, and the rails average these. Else each rank's elements
// are divided by the number of all ranks, and the rails add up. Rails are different calls to the
// codec's random numbers.
HostSums::Part HostSums::Between(const Call& call, const std::byte* from, std::byte* to,
                                 uint64_t count) const {
  Part part{Group::kRail, call};
  part.call.nranks = hosts_.hosts();
  part.call.rank = hosts_.HostOf(rank_);
  part.call.count = count;
  part.call.send = from;
  part.call.recv = to;
  part.call.seed ^= Mix64(static_cast<uint64_t>(hosts_.LocalIndex(rank_)));
  if (!Even() && call.op == ReduceOp::kAvg) part.call.op = ReduceOp::kSum;
  return part;
}

void HostSums::AppendAllReduce(const Call& call) {
  const auto rails = static_cast<uint64_t>(rails_);
  const auto index = static_cast<uint64_t>(hosts_.LocalIndex(rank_));
  const size_t size = SizeOf(call.type);
  const auto* const send = static_cast<const std::byte*>(call.send);
  auto* const recv = static_cast<std::byte*>(call.recv);
  // Equal shares of whole superblocks; the few elements behind them are added up uncompressed.
  const uint64_t share = call.count / (rails * kSuperblock) * kSuperblock;
  const uint64_t rest = call.count - share * rails;
  compresses_ = share > 0;
  std::byte* const own = recv + index * share * size;
  if (share > 0 && hosts_.RanksOf(hosts_.HostOf(rank_)).size() == rails) {
    parts_.push_back(Inside(call, Collective::kReduceScatter, send, own, share));
    parts_.push_back(Between(call, own, own, share));
    parts_.push_back(Inside(call, Collective::kAllGather, own, recv, share));
  } else if (share > 0) {
    const size_t bytes = share * size;
    for (int rail = 0; rail < rails_; ++rail) {
      const size_t at = static_cast<size_t>(rail) * bytes;
      parts_.push_back(Inside(call, Collective::kReduce, send + at, recv + at, share, rail));
    }
    if (index < rails) parts_.push_back(Between(call, own, own, share));
    for (int rail = 0; rail < rails_; ++rail) {
      std::byte* const at = recv + static_cast<size_t>(rail) * bytes;
      parts_.push_back(Inside(call, Collective::kBroadcast, at, at, share, rail));
    }
  }
  if (rest > 0 || share == 0) {
    Part part{Group::kAll, call};  // has the call's statistics if nothing else has them
    part.call.count = rest;
    part.call.send = send + share * rails * size;
    part.call.recv = recv + share * rails * size;
    part.call.codec = nullptr;
    if (share > 0) part.call.stats = nullptr;
    parts_.push_back(std::move(part));
  }
}

HostSums::Part HostSums::StatsOfRails(const Call& call, const ccl_compression_stats_t& stats) {
  stats_.assign(kCounts + static_cast<size_t>(hosts_.LargestHost()), 0.0);
  stats_[0] = static_cast<double>(stats.zero_blocks);
  stats_[1] = static_cast<double>(stats.dropped_superblocks);
  stats_[2] = static_cast<double>(stats.poisoned_blocks);
  stats_[kCounts + static_cast<size_t>(hosts_.LocalIndex(rank_))] = stats.error_bound;
  auto* const memory = reinterpret_cast<std::byte*>(stats_.data());
  Part part = Inside(call, Collective::kAllReduce, memory, memory, stats_.size());
  part.call.type = DataType::kFloat64;
  part.call.op = ReduceOp::kSum;
  return part;
}

void HostSums::TakeStats(ccl_compression_stats_t* stats) const {
  stats->zero_blocks = static_cast<uint64_t>(stats_[0]);
  stats->dropped_superblocks = static_cast<uint64_t>(stats_[1]);
  stats->poisoned_blocks = static_cast<uint64_t>(stats_[2]);
  stats->error_bound = *std::max_element(stats_.begin() + kCounts, stats_.end());
}

void HostSums::AppendReduceScatter(const Call& call) {
  const auto hosts = static_cast<size_t>(hosts_.hosts());
  const size_t bytes = call.bytes();
  sums_.resize(hosts * bytes);
  compresses_ = true;
  for (size_t host = 0; host < hosts; ++host) {
    const auto first = static_cast<size_t>(hosts_.RanksOf(static_cast<int>(host)).front());
    parts_.push_back(Inside(call, Collective::kReduceScatter,
                            static_cast<const std::byte*>(call.send) + first * bytes,
                            sums_.data() + host * bytes, call.count));
  }
  parts_.push_back(Between(call, sums_.data(), static_cast<std::byte*>(call.recv), call.count));
}

}  // namespace inccl
