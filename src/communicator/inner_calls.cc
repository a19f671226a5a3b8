// SPDX-License-Identifier: Apache-2.0
//
// Calls of CollectiveRunner that consist of calls: each prepares collectives, which RunInner runs,
// and makes its result of theirs.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/rng.h"
#include "communicator/collective_runner.h"
#include "compress/checked_state.h"
#include "compress/identity_codec.h"
#include "device/runtime.h"
#include "tuning/cost_model.h"

namespace inccl {
namespace {

constexpr uint64_t kMostElements = kWindow;  // each rank does the work of all
// An unknown link counts as one of 1 Gbit/s, since it is the inputs that travel.
constexpr uint64_t kLeastBytePs = 8500;

Call GatherOf(const Call& call) {
  Call inner;
  inner.collective = Collective::kAllGather;
  inner.type = call.type;
  inner.count = call.count;
  inner.rank = call.rank;
  inner.nranks = call.nranks;
  inner.send = call.send;
  return inner;
}

Status Copy(bool device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  if (device) return CurrentDevice()->Copy(to, from, bytes);
  std::memcpy(to, from, bytes);
  return Status::Ok();
}

void AddStats(const ccl_compression_stats_t& round, ccl_compression_stats_t* sum) {
  sum->payload_bytes += round.payload_bytes;
  sum->wire_bytes += round.wire_bytes;
  sum->zero_blocks += round.zero_blocks;
  sum->dropped_superblocks += round.dropped_superblocks;
  sum->poisoned_blocks += round.poisoned_blocks;
}

}  // namespace

// ---------------------------------------------------------------- inputs of all ranks
//
// Small compressed all-reduces over long links. A codec whose ranks agree first takes two dependent
// messages where an uncompressed call takes one. So every rank sends all others its input as it is,
// and computes the compressed result of all ranks by itself: the same bits after one message.

bool CollectiveRunner::GathersInputs(const Call& call, const Engine* engine,
                                     const Choice& choice) const {
  if (call.codec == nullptr || engine != nullptr || call.residual != nullptr ||
      call.collective != Collective::kAllReduce || call.count > kMostElements ||
      choice.rule != TunerRule::kModel || call.codec->side_phases().empty() ||
      call.codec->route().group != 0) {
    return false;
  }
  const Call gather = GatherOf(call);
  const Result<Choice> way = plans_.ChoiceFor(gather, false);
  if (!way.ok()) return false;
  CostConstants costs = options_.tuner_table.costs();
  costs.network_byte_ps = std::max(costs.network_byte_ps, kLeastBytePs);
  const uint64_t elements = call.count * static_cast<uint64_t>(call.nranks);
  constexpr uint64_t kPsPerNs = 1000;
  const uint64_t ns = EstimateCost(plans_.Tuned(gather, false), way->algorithm, costs).ns +
                      elements * (costs.encode_element_ps + costs.decode_element_ps) / kPsPerNs;
  return ns < choice.estimates_ns[static_cast<size_t>(choice.algorithm)];
}

Status CollectiveRunner::GatherInputs(const Call& call, uint64_t signature) {
  Log(LogLevel::kInfo, LogSubsystem::kTuning,
      "{} op {}: instead, every rank sends its input and computes the result of all: one message "
      "fewer in a row",
      name_, sequence_);
  rounds_.received.resize(call.bytes() * static_cast<size_t>(call.nranks));
  Call inner = GatherOf(call);
  inner.recv = rounds_.received.data();
  if (Status status = RunInner(inner, false, &plans_, signature); !status.ok()) return status;
  CodecStats stats;
  Status status = SumOfInputs(*call.codec, ArgsOf(call), rounds_.received,
                              static_cast<std::byte*>(call.recv), &stats);
  if (status.ok()) FillStats(call, stats, true);
  return status;
}

// ---------------------------------------------------------------- several vectors
//
// They run as one call on a copy of all of them. The residuals of the vectors make up a residual of
// this call, and get its errors when it succeeds.

Status CollectiveRunner::Concatenate(const Call& call) {
  const size_t element = SizeOf(call.type);
  std::deque<ResidualUse> uses;  // it does not move them
  bool feeds_back = false;
  for (const FusedVector& vector : *call.vectors) {
    if (vector.residual == nullptr) continue;
    feeds_back = true;
    const Status& taken = uses.emplace_back(vector.residual.get(), lineage_).status();
    if (!taken.ok()) return taken;
  }
  fused_.resize(call.bytes());
  fused_errors_.assign(feeds_back ? call.count : 0, 0.0f);
  size_t first = 0;
  for (const FusedVector& vector : *call.vectors) {
    Status copied =
        Copy(call.on_device, fused_.data() + first * element, vector.send, vector.count * element);
    if (!copied.ok()) return copied;
    if (vector.residual != nullptr) {
      vector.residual->Scaled(0, std::span(fused_errors_).subspan(first, vector.count));
    }
    first += vector.count;
  }
  Call whole = call;
  whole.send = whole.recv = fused_.data();
  whole.on_device = false;
  if (feeds_back) {
    if (fused_residual_ == nullptr || fused_residual_->count() != call.count) {
      fused_residual_ = std::make_shared<Residual>(call.count, ResidualOptions());
    }
    whole.residual = fused_residual_;
    if (Status status = fused_residual_->Import(fused_errors_); !status.ok()) return status;
  }
  if (Status status = Begin(whole, nullptr); !status.ok()) return status;
  if (feeds_back) {
    if (Status status = fused_residual_->Export(fused_errors_); !status.ok()) return status;
  }
  first = 0;
  for (const FusedVector& vector : *call.vectors) {
    Status copied =
        Copy(call.on_device, vector.recv, fused_.data() + first * element, vector.count * element);
    if (!copied.ok()) return copied;
    if (vector.residual != nullptr) {
      vector.residual->SetErrors(0, std::span(fused_errors_).subspan(first, vector.count));
    }
    first += vector.count;
  }
  for (ResidualUse& use : uses) use.Commit(sequence_);
  return Status::Ok();
}

// ---------------------------------------------------------------- sums of hosts

Status CollectiveRunner::CheckHostSums(const Call& call) const {
  const std::string& spec = call.codec->spec();
  if (options_.reproducible) {
    return InvalidArgument(fmt::format(
        "codec {}: its sums depend on which ranks share a host, which `reproducible` refuses",
        spec));
  }
  if (call.residual != nullptr) {
    return InvalidArgument(fmt::format(
        "codec {}: it encodes sums of hosts, so a rank has no error of its own for `residual`",
        spec));
  }
  return host_sums_->Check(call);
}

CollectiveRunner::HostPlans::HostPlans(const SlotBudget& slots, const HostSums& sums,
                                       HostMap one_each, const CommOptions* options,
                                       LaneTable* lanes)
    : rail(std::move(one_each)),
      inside({.slots = slots, .members = sums.Members(HostSums::Group::kHost)}, options, lanes),
      between({.slots = slots, .hosts = &rail, .members = sums.Members(HostSums::Group::kRail)},
              options, lanes) {}

Status CollectiveRunner::SumOnHosts(const Call& call) {
  if (host_plans_ == nullptr) {
    std::vector<uint64_t> identities(static_cast<size_t>(hosts_->hosts()));
    std::iota(identities.begin(), identities.end(), uint64_t{0});
    HostMap one_each(identities);
    std::vector<int> sites;
    for (int host = 0; host < hosts_->hosts(); ++host) sites.push_back(hosts_->SiteOf(host));
    one_each.SetSites(std::move(sites));
    host_plans_ =
        std::make_unique<HostPlans>(slots_, *host_sums_, std::move(one_each), &options_, &lanes_);
  }
  const std::span<HostSums::Part> parts = host_sums_->PartsOf(call);
  for (const HostSums::Part& part : parts) {
    if (part.call.nranks == 1) continue;
    const Result<Plan*> plan = PlansOf(part.group)->For(part.call, false);
    if (!plan.ok()) return plan.status();  // before the call has an effect
  }
  uint64_t signature = 0;
  if (Status status = liveness_->BeginCall(++sequence_, call, &signature); !status.ok()) {
    return status;
  }
  FAULT_POINT("call.after_begin");
  ++compressed_calls_;
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  // A call has one part of a rail and one of all ranks. How many parts it has inside a host depends
  // on the host.
  uint64_t inside = Mix64(signature);
  double rounding = 0;
  for (HostSums::Part& part : parts) {
    uint64_t of_part = signature;
    if (part.group == HostSums::Group::kRail) {
      part.call.stats = &stats;
    } else {
      of_part = part.group == HostSums::Group::kAll ? ~signature : inside;
    }
    Status status = RunInner(part.call, false, PlansOf(part.group), of_part);
    if (!status.ok()) return status;
    rounding = std::max(rounding, HostSums::Round(part, call.type));
    if (part.group == HostSums::Group::kHost) inside = Mix64(inside);
  }
  if (!host_sums_->compresses()) return Status::Ok();
  if (stats.compressed == 0) {  // a rank beside the rails
    stats.compressed = 1;
    stats.ratio = 1;
  }
  if (stats.payload_bytes > 0) {  // to bytes of the call's type
    stats.ratio *= static_cast<double>(SizeOf(call.type)) /
                   static_cast<double>(SizeOf(HostSums::SumType(call.type)));
  }
  stats.error_bound += rounding;
  if (call.collective == Collective::kAllReduce) {
    const HostSums::Part part = host_sums_->StatsOfRails(call, stats);
    Status status = RunInner(part.call, false, PlansOf(part.group), inside);
    if (!status.ok()) return status;
    host_sums_->TakeStats(&stats);
  }
  stats.elements = call.count;
  if (call.stats != nullptr) CopyStats(stats, call.stats);
  return Status::Ok();
}

// Calls of all ranks share their plans with the user's, so these must be the same, whichever is
// made first.
Plans* CollectiveRunner::PlansOf(HostSums::Group group) {
  if (group == HostSums::Group::kAll) return &plans_;
  return group == HostSums::Group::kHost ? &host_plans_->inside : &host_plans_->between;
}

// ---------------------------------------------------------------- reducers

Status CollectiveRunner::SettleRound(const Call& call, int round, bool sized, Call* inner,
                                     bool* below_min_bytes) const {
  const InnerCall made = call.reducer->Call(round);
  *inner = Call();
  inner->collective = made.collective;
  inner->op = made.op;
  inner->type = made.type;
  inner->count = made.count;
  inner->root = made.root;
  inner->rank = rank_;
  inner->nranks = nranks_;
  *below_min_bytes = false;
  if (made.codec == nullptr) return Status::Ok();
  if (!sized) {
    inner->count = std::max(inner->count, made.codec->min_bytes() / SizeOf(made.type) + 1);
  }
  // Rounds are different calls to the codec's random numbers.
  inner->codec = made.codec;
  inner->seed = call.seed ^ Mix64(static_cast<uint64_t>(round));
  Status fits = SettleCodec(inner, below_min_bytes);
  if (inner->codec != nullptr) inner->step = call.step;  // 0 is the step of the first call
  return fits;
}

// Before Begin, numbers of elements and the root are unknown, or those of a former call. A codec
// counts as used although a round may turn out to be too small for it.
Status CollectiveRunner::CheckRounds(const Call& call) const {
  for (int round = 0; nranks_ > 1 && round < call.reducer->rounds(); ++round) {
    Call inner;
    bool below_min_bytes = false;
    Status fits = SettleRound(call, round, false, &inner, &below_min_bytes);
    if (!fits.ok()) return fits;
    inner.root = 0;
    const Result<Choice> choice = plans_.ChoiceFor(inner, below_min_bytes);
    if (!choice.ok()) return choice.status();
  }
  return Status::Ok();
}

Status CollectiveRunner::Reduce(const Call& call) {
  ReducerUse use(call.reducer.get(), lineage_);
  if (!use.status().ok()) return use.status();
  Call settled = call;
  // The leaders and selections of a tensor follow from its own calls.
  if (settled.step == 0) settled.step = call.reducer->calls();
  if (Status status = CheckRounds(settled); !status.ok()) return status;
  uint64_t signature = 0;
  if (Status status = liveness_->BeginCall(++sequence_, settled, &signature); !status.ok()) {
    return status;
  }
  if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives)) {
    CallRecord record;
    record.Set(sequence_, settled);
    Log(LogLevel::kInfo, LogSubsystem::kCollectives, "{} op {}: {} runs as these rounds:", name_,
        sequence_, record.ToString());
  }
  FAULT_POINT("call.after_begin");
  ++compressed_calls_;
  call.reducer->Begin(settled, static_cast<const std::byte*>(call.send),
                      static_cast<std::byte*>(call.recv));
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  if (Status status = RunRounds(settled, signature, &stats); !status.ok()) return status;
  call.reducer->WriteResult();
  use.Commit(sequence_);
  if (call.stats == nullptr) return Status::Ok();
  const auto ranks = static_cast<double>(nranks_);
  const double moved = static_cast<double>(call.count) * 2 * (ranks - 1) / ranks;
  const auto payload = static_cast<double>(stats.payload_bytes);
  stats.elements = call.count;
  stats.bits = moved > 0 ? 8 * payload / moved : 0;
  stats.ratio = payload > 0 ? moved * static_cast<double>(SizeOf(call.type)) / payload : 1;
  stats.error_bound = std::numeric_limits<double>::infinity();
  stats.compressed = 1;
  CopyStats(stats, call.stats);
  return Status::Ok();
}

Status CollectiveRunner::RunRounds(const Call& call, uint64_t signature,
                                   ccl_compression_stats_t* stats) {
  ReducerState* const state = call.reducer.get();
  for (int round = 0; round < state->rounds(); ++round) {
    if (Status status = state->Produce(round, &rounds_.sent); !status.ok()) return status;
    Call inner;
    bool below_min_bytes = false;
    if (Status status = SettleRound(call, round, true, &inner, &below_min_bytes); !status.ok()) {
      return status;
    }
    const Extent extent = ExtentOf(inner, rank_, nranks_);
    if (rounds_.sent.size() != extent.send * SizeOf(inner.type)) {
      return InternalError(fmt::format("round {} of {}: {} bytes for {} elements of {}", round,
                                       state->identity(), rounds_.sent.size(), extent.send,
                                       Name(inner.type)));
    }
    rounds_.received.resize(extent.recv * SizeOf(inner.type));
    inner.send = rounds_.sent.data();
    inner.recv = rounds_.received.data();
    const bool errors = state->Call(round).asks_errors && inner.codec != nullptr && nranks_ > 1;
    if (errors) {
      if (rounds_.errors == nullptr || rounds_.errors->count() != inner.count) {
        rounds_.errors = std::make_shared<Residual>(inner.count, ResidualOptions());
      }
      if (Status status = rounds_.errors->Reset(); !status.ok()) return status;
      inner.residual = rounds_.errors;
    }
    ccl_compression_stats_t round_stats = CCL_COMPRESSION_STATS_INIT;
    inner.stats = &round_stats;
    if (Status status = RunInner(inner, below_min_bytes, &plans_, signature); !status.ok()) {
      return status;
    }
    AddStats(round_stats, stats);
    rounds_.error_values.resize(errors ? inner.count : 0);
    if (errors) {
      if (Status status = rounds_.errors->Export(rounds_.error_values); !status.ok()) return status;
    }
    Status status = state->Consume(round, rounds_.received, rounds_.error_values);
    if (!status.ok()) return status;
    signature = Mix64(signature);
  }
  return Status::Ok();
}

}  // namespace inccl
