// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "transport/transport.h"

namespace inccl::perf {
namespace {

// What the busiest rank does in all windows together.
struct Load {
  double host_bytes = 0;  // payload that a host sends to others (and receives)
  double rank_bytes = 0;  // of it, what the busiest rank sends
  double host_messages = 0, rank_messages = 0;
  double work = 0;                         // nanoseconds
  double remote_hops = 0, local_hops = 0;  // of the chain
};

class Estimator {
 public:
  Estimator(const EqualHostsShape& shape, const Chunking& chunking, const Machine& machine,
            Payloads* payloads)
      : shape_(shape), chunking_(chunking), machine_(machine), payloads_(payloads) {}

  Load LoadOf(Algorithm algorithm) {
    Load load = DataLoadOf(algorithm);
    if (!payloads_->codec().side_phases().empty()) AddAgreement(algorithm, &load);
    return load;
  }

 private:
  Load DataLoadOf(Algorithm algorithm) {
    switch (algorithm) {
      case Algorithm::kRing: return Ring();
      case Algorithm::kTwoShot: return TwoShot();
      case Algorithm::kTree: return Tree();
      case Algorithm::kRecursiveDoubling: return RecursiveDoubling();
      case Algorithm::kHierarchical: return Hierarchical();
      case Algorithm::kOneShot:
      case Algorithm::kEnd: break;
    }
    return {};
  }

  // The agreement of a compressed call has two levels where the data has; else it is direct, and a
  // tree if there are many ranks.
  void AddAgreement(Algorithm algorithm, Load* load) {
    const bool two_levels = algorithm == Algorithm::kHierarchical;
    const double slices = Slices(n(), chunking_.options().side_slice_elements);
    const double words = Total({Form::kSide, 0});
    double messages = 2 * (n() - per_host()) / n() * slices, bytes = 2 * words;
    if (two_levels) {
      messages = 2 * (hosts() - 1) / hosts() * slices / per_host();
      bytes = 2 * words / per_host();
    } else if (shape_.ranks() > kMostDirectRanks) {
      messages = hosts() > 1 ? 2 * Slices(2, chunking_.options().side_slice_elements) : 0;
    }
    load->rank_messages += messages;
    load->host_messages += messages * per_host();
    load->rank_bytes += hosts() > 1 ? bytes : 0;
    load->host_bytes += hosts() > 1 ? bytes * per_host() : 0;
    load->work += Work({.side = true, .own = 1, .payloads = 1}, 1) +
                  Work({.side = true, .sums = 2, .output = true}, 1);
  }

  double n() const { return shape_.ranks(); }
  double hosts() const { return shape_.hosts; }
  double per_host() const { return shape_.per_host; }
  double elements() const { return static_cast<double>(chunking_.options().count); }

  // Bytes of the whole vector in this form.
  double Total(const Format& format) {
    double total = 0;
    const uint64_t window = chunking_.options().window_elements;
    for (uint64_t first = 0; first < chunking_.options().count; first += window) {
      const uint64_t count = std::min(window, chunking_.options().count - first);
      total += payloads_->Bytes(format, {0, first, static_cast<uint32_t>(count)});
    }
    return total;
  }
  double Sum(double contributions) {
    return Total({Form::kSum, static_cast<uint16_t>(std::max(1.0, contributions))});
  }
  double Result() { return Total({Form::kResult, 0}); }

  // Slices that have elements if each window has this many chunks.
  double Slices(double chunks) const { return Slices(chunks, chunking_.options().slice_elements); }
  double Slices(double chunks, double slice_elements) const {
    const uint64_t window = chunking_.options().window_elements;
    double slices = 0;
    for (uint64_t first = 0; first < chunking_.options().count; first += window) {
      const auto count = static_cast<double>(std::min(window, chunking_.options().count - first));
      const double filled = std::min(chunks, std::ceil(count / kSuperblock));
      slices += filled * std::ceil(count / filled / slice_elements);
    }
    return slices;
  }

  double Work(const StepShape& shape, double share) const {
    const bool large = static_cast<double>(chunking_.options().bytes()) > machine_.cache_bytes;
    return payloads_->Work(shape, static_cast<uint32_t>(elements() * share), large, machine_);
  }
  double Encode(double share) const { return Work({.own = 1, .payloads = 1}, share); }
  double Decode(double share) const { return Work({.forwards = true, .output = true}, share); }
  double Fold(double terms, double share, bool complete) const {
    return Work({.own = 1,
                 .sums = static_cast<uint32_t>(std::max(0.0, terms - 1)),
                 .payloads = 1,
                 .result = complete,
                 .output = complete},
                share);
  }

  Load Ring() {
    Load load;
    const double hops = n() - 1, slices = Slices(n()) * 2 * hops / n();
    double sums = 0;
    for (int i = 0; i < 16; ++i) sums += Sum(1 + i * (n() - 2) / 15) / 16;
    load.rank_bytes = load.host_bytes = hosts() > 1 ? hops / n() * (sums + Result()) : 0;
    load.rank_messages = load.host_messages = hosts() > 1 ? slices : 0;
    load.work = Fold(2, 1, false) + Decode(1) + slices * machine_.step;
    load.remote_hops = hosts() > 1 ? std::min(2 * hosts(), 2 * hops) : 0;
    load.local_hops = 2 * hops - load.remote_hops;
    return load;
  }

  Load TwoShot() {
    Load load;
    const double away = (n() - per_host()) / n(), slices = Slices(n());
    load.rank_bytes = away * (Sum(1) + Result());
    load.host_bytes = load.rank_bytes * per_host();
    load.rank_messages = 2 * away * slices;
    load.host_messages = load.rank_messages * per_host();
    load.work = Encode(1 - 1 / n()) + Fold(n(), 1 / n(), true) + Decode(1 - 1 / n()) +
                2 * slices * machine_.step;
    load.remote_hops = 2;
    return load;
  }

  // The busiest rank has two children in one tree and is a leaf of the other.
  Load Tree() {
    Load load;
    const double slices = Slices(2), up = Sum(n() / 4) / 2 + Sum(1) / 2;
    // Of the hosts' blocks of places, some have an edge more than a rank by itself.
    const double edges = per_host() > 1 ? 1.5 : 1;
    load.rank_bytes = hosts() > 1 ? up + Result() : 0;
    load.rank_messages = hosts() > 1 ? 2 * slices : 0;
    load.host_bytes = load.rank_bytes * edges;
    load.host_messages = load.rank_messages * edges;
    load.work = Fold(3, 0.5, false) + Encode(0.5) + Decode(1) + 2 * slices * machine_.step;
    load.remote_hops = 2 * std::floor(std::log2(hosts()));
    load.local_hops = 2 * std::floor(std::log2(per_host()));
    return load;
  }

  Load RecursiveDoubling() {
    Load load;
    const double rounds = std::ceil(std::log2(hosts()));
    for (double round = 0; round < rounds; ++round) {
      load.rank_bytes += Sum(per_host() * std::exp2(round));
    }
    load.host_bytes = load.rank_bytes * per_host();
    load.rank_messages = rounds * Slices(1);
    load.host_messages = load.rank_messages * per_host();
    load.work = (std::log2(n())) * Fold(2, 1, false) + Decode(1);
    load.remote_hops = rounds;
    load.local_hops = std::ceil(std::log2(per_host()));
    return load;
  }

  Load Hierarchical() {
    Load load;
    const double away = (hosts() - 1) / hosts(), slices = Slices(n());
    load.host_bytes = away * (Sum(per_host()) + Result());
    load.rank_bytes = load.host_bytes / per_host();
    load.rank_messages = 2 * away * slices / per_host();
    load.host_messages = load.rank_messages * per_host();
    load.work = Encode(1 - 1 / per_host()) + Fold(per_host(), 1 / per_host(), false) +
                Fold(hosts() + per_host() - 1, 1 / n(), true) + Decode(1) +
                2 * slices * machine_.step;
    load.remote_hops = 2;
    load.local_hops = 2;
    return load;
  }

  const EqualHostsShape shape_;
  const Chunking& chunking_;
  const Machine& machine_;
  Payloads* const payloads_;
};

}  // namespace

TimeEstimate Estimate(Algorithm algorithm, const EqualHostsShape& shape, const Chunking& chunking,
                      const Machine& machine, Payloads* payloads) {
  const Load load = Estimator(shape, chunking, machine, payloads).LoadOf(algorithm);
  const double scale = std::max(1.0, 1 / machine.processors_per_rank);
  TimeEstimate estimate;
  estimate.link =
      (load.host_bytes + load.host_messages * kHeaderBytes) * machine.framing * 8e-9 / machine.gbps;
  estimate.processor = 1e-9 * scale *
                       (load.work + 2 * load.rank_messages * machine.message +
                        2 * load.rank_bytes * machine.message_byte);
  const double side = payloads->codec().side_phases().empty() ? 1 : 2;
  estimate.chain = 1e-9 * side *
                   (load.remote_hops * (machine.latency + 2 * scale * machine.message) +
                    load.local_hops * (machine.local_latency + scale * machine.step));
  return estimate;
}

}  // namespace inccl::perf
