// SPDX-License-Identifier: Apache-2.0
#include "communicator/host_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/kernels/convert.h"

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

double HostSums::Round(const Part& part, DataType type) {
  if (part.rounded == nullptr) return 0;
  constexpr size_t kAtOnce = 1024;
  const auto* const from = static_cast<const float*>(part.call.recv);
  auto* const to = static_cast<std::byte*>(part.rounded);
  std::array<float, kAtOnce> rounded;
  float largest = 0;
  for (size_t first = 0; first < part.call.count; first += kAtOnce) {
    const size_t count = std::min<size_t>(kAtOnce, part.call.count - first);
    FromFloat(type, from + first, to + first * SizeOf(type), count);
    ToFloat(type, to + first * SizeOf(type), rounded.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const float error = std::fabs(rounded[i] - from[first + i]);
      largest = error > largest ? error : largest;  // a NaN has no bound, as the codec knows
    }
  }
  return static_cast<double>(largest);
}

const std::byte* HostSums::Widened(const Call& call, std::byte* wide, uint64_t elements) {
  if (SumType(call.type) == call.type) return static_cast<const std::byte*>(call.send);
  ToFloat(call.type, call.send, reinterpret_cast<float*>(wide), elements);
  return wide;
}

HostSums::Part HostSums::Inside(const Call& call, Collective collective, DataType type,
                                const std::byte* from, std::byte* to, uint64_t count,
                                int root) const {
  Part part{Group::kHost, call};
  part.call.collective = collective;
  part.call.type = type;
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
  part.call.type = SumType(call.type);
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
  auto* const recv = static_cast<std::byte*>(call.recv);
  // Equal shares of whole superblocks; the few elements behind them are added up uncompressed.
  const uint64_t share = call.count / (rails * kSuperblock) * kSuperblock;
  const uint64_t rest = call.count - share * rails;
  compresses_ = share > 0;
  if (!compresses_) {
    Part part{Group::kAll, call};
    part.call.codec = nullptr;
    parts_.push_back(std::move(part));
    return;
  }
  const DataType type = SumType(call.type);
  const bool widened = type != call.type;
  if (widened) sums_.resize(call.count * SizeOf(type));
  std::byte* const sums = widened ? sums_.data() : recv;
  const std::byte* const send = Widened(call, sums, call.count);
  const size_t wide_share = share * SizeOf(type), result_share = share * SizeOf(call.type);
  std::byte* const own = sums + index * wide_share;
  std::byte* const own_result = recv + index * result_share;
  const auto between = [&] {
    Part part = Between(call, own, own, share);
    if (widened) part.rounded = own_result;
    return part;
  };
  if (hosts_.RanksOf(hosts_.HostOf(rank_)).size() == rails) {
    parts_.push_back(Inside(call, Collective::kReduceScatter, type, send, own, share));
    parts_.push_back(between());
    parts_.push_back(Inside(call, Collective::kAllGather, call.type, own_result, recv, share));
  } else {
    for (int rail = 0; rail < rails_; ++rail) {
      const size_t at = static_cast<size_t>(rail) * wide_share;
      parts_.push_back(Inside(call, Collective::kReduce, type, send + at, sums + at, share, rail));
    }
    if (index < rails) parts_.push_back(between());
    for (int rail = 0; rail < rails_; ++rail) {
      std::byte* const at = recv + static_cast<size_t>(rail) * result_share;
      parts_.push_back(Inside(call, Collective::kBroadcast, call.type, at, at, share, rail));
    }
  }
  if (rest == 0) return;
  Part part{Group::kAll, call};
  part.call.type = type;
  part.call.count = rest;
  part.call.send = send + rails * wide_share;
  part.call.recv = sums + rails * wide_share;
  part.call.codec = nullptr;
  part.call.stats = nullptr;
  if (widened) part.rounded = recv + rails * result_share;
  parts_.push_back(std::move(part));
}

HostSums::Part HostSums::StatsOfRails(const Call& call, const ccl_compression_stats_t& stats) {
  stats_.assign(kCounts + static_cast<size_t>(hosts_.LargestHost()), 0.0);
  stats_[0] = static_cast<double>(stats.zero_blocks);
  stats_[1] = static_cast<double>(stats.dropped_superblocks);
  stats_[2] = static_cast<double>(stats.poisoned_blocks);
  stats_[kCounts + static_cast<size_t>(hosts_.LocalIndex(rank_))] = stats.error_bound;
  auto* const memory = reinterpret_cast<std::byte*>(stats_.data());
  Part part =
      Inside(call, Collective::kAllReduce, DataType::kFloat64, memory, memory, stats_.size());
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
  const DataType type = SumType(call.type);
  const bool widened = type != call.type;
  const auto ranks = static_cast<size_t>(hosts_.nranks());
  const size_t bytes = call.count * SizeOf(type);
  sums_.resize((hosts + (widened ? ranks : 0)) * bytes);
  std::byte* const wide = sums_.data() + hosts * bytes;
  const std::byte* const send = Widened(call, wide, call.count * ranks);
  compresses_ = true;
  for (size_t host = 0; host < hosts; ++host) {
    const auto first = static_cast<size_t>(hosts_.RanksOf(static_cast<int>(host)).front());
    parts_.push_back(Inside(call, Collective::kReduceScatter, type, send + first * bytes,
                            sums_.data() + host * bytes, call.count));
  }
  // All wide elements have been read when the rails begin.
  auto* const recv = static_cast<std::byte*>(call.recv);
  parts_.push_back(Between(call, sums_.data(), widened ? wide : recv, call.count));
  if (widened) parts_.back().rounded = recv;
}

}  // namespace inccl
