// SPDX-License-Identifier: Apache-2.0
//
// A reduction in which the ranks of each host add up their elements before the codec sees them
// (Route::sums_hosts), as a sequence of collectives: reduce-scatter inside the host, the codec's
// collective among ranks of equal position on all hosts (a rail), all-gather inside the host. There
// are as many rails as the smallest host has ranks. A larger host reduces the part of each rail to
// the rank of this rail, and broadcasts its result, one part after the other. Sums of types of two
// bytes are fp32 until the codec has run, so each result is rounded once.
#ifndef INCCL_COMMUNICATOR_HOST_SUMS_H_
#define INCCL_COMMUNICATOR_HOST_SUMS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "topology/host_map.h"

namespace inccl {

// One thread at a time.
class HostSums {
 public:
  // Who takes part in a collective, numbered in ascending order.
  enum class Group { kAll, kHost, kRail };
  struct Part {
    Group group = Group::kAll;
    Call call;
    void* rounded = nullptr;  // set: the results, which are fp32, go here in the call's type
  };

  // `hosts` outlives it.
  HostSums(int rank, const HostMap* hosts)
      : rank_(rank), hosts_(*hosts), rails_(hosts->SmallestHost()) {}

  // OK if `call` can run on these hosts; else the message names the hosts that prevent it.
  Status Check(const Call& call) const;
  // Collectives that run one after the other on the rank, for a call that Check accepts. They are
  // valid until the next use of this object.
  std::span<Part> PartsOf(const Call& call);
  // The type in which ranks of a host add up elements of that type.
  static DataType SumType(DataType type) { return SizeOf(type) == 2 ? DataType::kFloat32 : type; }
  // Rounds the results of a part that has run to `type`, if that is due. Returns the largest error
  // of an element.
  static double Round(const Part& part, DataType type);
  // Whether the codec's collective is part of that call on any rank.
  bool compresses() const { return compresses_; }
  // The sum over this host of what its ranks, each of another rail, know of an all-reduce.
  Part StatsOfRails(const Call& call, const ccl_compression_stats_t& stats);
  // When it has run.
  void TakeStats(ccl_compression_stats_t* stats) const;
  std::vector<int> Members(Group group) const;

 private:
  // The call's elements in SumType: where they are, or converted to `wide`.
  static const std::byte* Widened(const Call& call, std::byte* wide, uint64_t elements);
  void AppendAllReduce(const Call& call);
  void AppendReduceScatter(const Call& call);
  // Whether the hosts have as many ranks each.
  bool Even() const { return rails_ == hosts_.LargestHost(); }
  Part Inside(const Call& call, Collective collective, DataType type, const std::byte* from,
              std::byte* to, uint64_t count, int root = 0) const;
  Part Between(const Call& call, const std::byte* from, std::byte* to, uint64_t count) const;

  const int rank_;
  const HostMap& hosts_;
  const int rails_;
  std::vector<Part> parts_;
  bool compresses_ = false;
  std::vector<double> stats_;  // counts, then the error bound of each rail
  // Sums of this host, of the elements that the ranks of a rail get, and elements that are wider
  // than those of the call.
  std::vector<std::byte> sums_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_HOST_SUMS_H_
