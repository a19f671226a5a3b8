// SPDX-License-Identifier: Apache-2.0
//
// Calls of CollectiveRunner in which the ranks of each host add up their elements first.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/rng.h"
#include "communicator/collective_runner.h"
#include "compress/identity_codec.h"

namespace inccl {

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
                                       HostMap one_each, LaneTable* lanes)
    : rail(std::move(one_each)),
      inside({.slots = slots, .members = sums.Members(HostSums::Group::kHost)}, lanes),
      between({.slots = slots, .hosts = &rail, .members = sums.Members(HostSums::Group::kRail)},
              lanes) {}

Status CollectiveRunner::RunOnHosts(const Call& call) {
  if (host_plans_ == nullptr) {
    std::vector<uint64_t> identities(static_cast<size_t>(hosts_->hosts()));
    std::iota(identities.begin(), identities.end(), uint64_t{0});
    host_plans_ = std::make_unique<HostPlans>(slots_, *host_sums_, HostMap(identities), &lanes_);
  }
  const std::span<HostSums::Part> parts = host_sums_->PartsOf(call);
  for (const HostSums::Part& part : parts) {
    PlanCache* const plans = PlansOf(part.group);
    if (part.call.nranks == 1 || plans->Find(part.call, false) != nullptr) continue;
    const Result<Choice> choice =
        Choose(Tuned(part.call, false, plans->hosts()), FilterOf(part.group), options_.tuner_table);
    if (!choice.ok()) return choice.status();  // before the call has an effect
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
    if (Status status = RunPart(part, of_part); !status.ok()) return status;
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
    Status status = RunPart(host_sums_->StatsOfRails(call, stats), inside);
    if (!status.ok()) return status;
    host_sums_->TakeStats(&stats);
  }
  stats.elements = call.count;
  if (call.stats != nullptr) CopyStats(stats, call.stats);
  return Status::Ok();
}

PlanCache* CollectiveRunner::PlansOf(HostSums::Group group) {
  if (group == HostSums::Group::kAll) return &plans_;
  return group == HostSums::Group::kHost ? &host_plans_->inside : &host_plans_->between;
}

// Calls of all ranks share their plans with the user's, so these must be the same, whichever is
// made first.
AlgorithmFilter CollectiveRunner::FilterOf(HostSums::Group group) const {
  return group == HostSums::Group::kAll ? options_.algorithms : AlgorithmFilter();
}

Status CollectiveRunner::RunPart(const HostSums::Part& part, uint64_t signature) {
  const Call& call = part.call;
  if (call.nranks == 1) {  // alone on its host
    CombineAlone(ArgsOf(call), call.send, call.recv);
    return Status::Ok();
  }
  PlanCache* const plans = PlansOf(part.group);
  const std::shared_ptr<const Codec>& codec = call.codec == nullptr ? IdentityCodec() : call.codec;
  const PlanCache::Plan* plan = plans->Find(call, false);
  if (plan == nullptr) {
    const Result<Choice> choice =
        Choose(Tuned(call, false, plans->hosts()), FilterOf(part.group), options_.tuner_table);
    if (!choice.ok()) return choice.status();
    Result<PlanCache::Plan> made = plans->Make(call, *codec, *choice, false);
    if (!made.ok()) return made.status();
    plan = plans->Keep(*std::move(made));
  }
  if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives) ||
      LogEnabled(LogLevel::kInfo, LogSubsystem::kTuning)) {
    LogCall(call, Tuned(call, false, plans->hosts()), plan->choice);
  }
  return RunPlan(call, nullptr, *plan, StateOf(codec), signature, liveness_);
}

}  // namespace inccl
