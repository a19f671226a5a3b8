// SPDX-License-Identifier: Apache-2.0
//
// Calls of CollectiveRunner with a reducer: an all-reduce that runs as a sequence of collectives.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/rng.h"
#include "communicator/collective_runner.h"
#include "compress/identity_codec.h"

namespace inccl {
namespace {

void AddStats(const ccl_compression_stats_t& round, ccl_compression_stats_t* sum) {
  sum->payload_bytes += round.payload_bytes;
  sum->wire_bytes += round.wire_bytes;
  sum->zero_blocks += round.zero_blocks;
  sum->dropped_superblocks += round.dropped_superblocks;
  sum->poisoned_blocks += round.poisoned_blocks;
}

}  // namespace

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
    const Result<Choice> choice =
        Choose(Tuned(inner, below_min_bytes, hosts_), options_.algorithms, options_.tuner_table);
    if (!choice.ok()) return choice.status();
  }
  return Status::Ok();
}

Status CollectiveRunner::RunReduced(const Call& call) {
  ReducerUse use(call.reducer.get());
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
    if (Status status = RunRound(inner, below_min_bytes, signature); !status.ok()) return status;
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

Status CollectiveRunner::RunRound(const Call& inner, bool below_min_bytes, uint64_t signature) {
  if (nranks_ == 1) {
    CombineAlone(inner, inner.send, inner.recv);
    return Status::Ok();
  }
  const std::shared_ptr<const Codec>& codec =
      inner.codec == nullptr ? IdentityCodec() : inner.codec;
  const PlanCache::Plan* plan = plans_.Find(inner, below_min_bytes);
  if (plan == nullptr) {
    const Result<Choice> choice =
        Choose(Tuned(inner, below_min_bytes, hosts_), options_.algorithms, options_.tuner_table);
    if (!choice.ok()) return choice.status();
    Result<PlanCache::Plan> made = plans_.Make(inner, *codec, *choice, below_min_bytes);
    if (!made.ok()) return made.status();
    plan = plans_.Keep(*std::move(made));
  }
  if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives) ||
      LogEnabled(LogLevel::kInfo, LogSubsystem::kTuning)) {
    LogCall(inner, Tuned(inner, below_min_bytes, hosts_), plan->choice);
  }
  return RunWithResidual(inner, nullptr, *plan, StateOf(codec), signature);
}

}  // namespace inccl
