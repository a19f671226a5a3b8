// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/row_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "perf/support/digest.h"
#include "perf/support/element.h"
#include "perf/support/statistics.h"

namespace inccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

Result<RowRunner> RowRunner::Create(World& world, const BenchOptions& options,
                                    const Communicator& communicator, const Inputs& inputs,
                                    Gpu* gpu, BaselineCalls* baseline, ProgressLine* progress) {
  Result<RowBuffers> buffers = RowBuffers::Create(world, options, inputs, gpu);
  if (!buffers.ok()) return buffers.status();
  return RowRunner(world, options, communicator, inputs, baseline, progress, *std::move(buffers));
}

Result<Row> RowRunner::Run(const RowCase& row_case) {
  if (Status s = buffers_.Begin(row_case); !s.ok()) return s;
  if (options_->checks > 0) check_.Begin(buffers_);
  Row row;
  row.operation = row_case.operation;
  row.codec = row_case.codec->given();
  row.codec_spec = row_case.codec->canonical();
  row.nranks = world_->size();
  row.bytes = buffers_.layout().bytes;
  row.count = buffers_.layout().count;
  row.type = row_case.type;
  row.op = row_case.op;
  row.root = row_case.root;
  for (const bool in_place : {false, true}) {
    if (in_place && !HasInPlace(row_case.operation)) continue;
    Result<Measurement> m = Measure(in_place);
    if (!m.ok()) return m.status();
    (in_place ? row.in_place : row.out_of_place) = *std::move(m);
  }
  return row;
}

Result<Measurement> RowRunner::Measure(bool in_place) {
  Measurement m;
  if (Status s = AskWire(in_place, &m); !s.ok()) return s;
  Result<Times> times = RunIterations(in_place);
  if (!times.ok()) return times.status();
  if (Status s = Summarize(*times, &m); !s.ok()) return s;
  if (Status s = Check(in_place, &m); !s.ok()) return s;
  if (Status s = CheckBaseline(in_place); !s.ok()) return s;
  return m;
}

Status RowRunner::CallOurs(const BenchCall& call, ccl_compression_stats_t* stats) const {
  const BenchCodec& codec = *buffers_.row().codec;
  if (codec.none() && !communicator_->fused()) return communicator_->Run(call);
  return communicator_->RunCompressed(call, codec, stats);
}

Status RowRunner::Finish() const {
  Status s = buffers_.Synchronize();
  return s.ok() ? communicator_->AsyncError() : s;
}

void RowRunner::ShowProgress(bool in_place, const char* what, uint64_t number, uint64_t total) {
  if (!progress_->Due()) return;
  progress_->Show(fmt::format("{} B {} {} {}: {} {} of {}", buffers_.layout().bytes,
                              TableName(buffers_.row().type), buffers_.row().codec->given(),
                              in_place ? "in place" : "out of place", what, number, total));
}

// ------------------------------------------------------------------------------------ time

// On a device: until the stream is empty, by the host's clock.
Result<double> RowRunner::TimeOurs(bool in_place) {
  const BenchCall call = buffers_.CallFor(in_place);
  if (Status s = buffers_.MakeReady(in_place); !s.ok()) return s;
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    if (Status s = CallOurs(call, nullptr); !s.ok()) return s;
  }
  if (Status s = buffers_.Synchronize(); !s.ok()) return s;
  const double time = MicrosecondsSince(start) / static_cast<double>(options_->aggregated);
  if (Status s = communicator_->AsyncError(); !s.ok()) return s;
  return time;
}

Result<double> RowRunner::TimeBaseline(bool in_place) {
  if (Status s = buffers_.MakeReady(in_place); !s.ok()) return s;
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    if (Status s = baseline_->Run(buffers_, in_place); !s.ok()) return s;
  }
  if (Status s = buffers_.Synchronize(); !s.ok()) return s;
  return MicrosecondsSince(start) / static_cast<double>(options_->aggregated);
}

Result<Interval> RowRunner::TimeLimit(bool in_place) {
  if (Status s = buffers_.MakeReady(in_place); !s.ok()) return s;
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const double start = SharedMicroseconds();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    if (Status s = buffers_.StreamOnce(); !s.ok()) return s;
  }
  if (Status s = buffers_.Synchronize(); !s.ok()) return s;
  return Interval{start, SharedMicroseconds()};
}

Status RowRunner::RunSide(Side side, bool in_place, bool timed, Times* times) {
  if (side == Side::kLimit) {
    Result<Interval> time = TimeLimit(in_place);
    if (time.ok() && timed) times->limit.push_back(*time);
    return time.status();
  }
  Result<double> time = side == Side::kOurs ? TimeOurs(in_place) : TimeBaseline(in_place);
  if (time.ok() && timed) {
    (side == Side::kOurs ? times->ours : times->baseline).push_back(*time);
  }
  return time.status();
}

Result<RowRunner::Times> RowRunner::RunIterations(bool in_place) {
  Times times;
  std::vector<Side> sides = {Side::kOurs};
  if (baseline_ != nullptr && baseline_->Can(buffers_)) sides.push_back(Side::kBaseline);
  if (options_->limit) sides.push_back(Side::kLimit);
  Turns turns{options_->warmup, options_->warmup + options_->iterations};
  for (uint64_t i = 0; i < turns.total; ++i) {
    const Clock::time_point start = Clock::now();
    ShowProgress(in_place, "iteration", i + 1, turns.total);
    for (const Side side : sides) {
      if (Status s = RunSide(side, in_place, i >= turns.warmup, &times); !s.ok()) return s;
    }
    // In the other order next time, so that none always runs in the same one's wake.
    std::reverse(sides.begin(), sides.end());
    if (i != 1 || options_->row_seconds <= 0) continue;
    Result<Turns> fewer = TurnsInTime(MicrosecondsSince(start) * 1e-6);
    if (!fewer.ok()) return fewer.status();
    turns = *fewer;
  }
  // No rank computes before all have ended the last call, which would take longer for that where
  // ranks share processors.
  if (Status s = world_->Barrier(); !s.ok()) return s;
  return times;
}

// The second turn took `seconds` here; the first may have had more to do than others.
Result<RowRunner::Turns> RowRunner::TurnsInTime(double seconds) {
  const Turns all{options_->warmup, options_->warmup + options_->iterations};
  Result<std::vector<double>> ranks = Gather(*world_, seconds);
  if (!ranks.ok()) return ranks.status();
  const double longest = *std::max_element(ranks->begin(), ranks->end());
  if (longest * static_cast<double>(all.total) <= options_->row_seconds) return all;
  const uint64_t warmup = std::min<uint64_t>(all.warmup, 2);
  const double fit = options_->row_seconds / longest - static_cast<double>(warmup);
  const uint64_t timed = fit < 2 ? 2 : static_cast<uint64_t>(fit);
  return Turns{warmup, warmup + std::min(timed, options_->iterations)};
}

// Of each iteration, from the first rank's start to the last one's end.
Result<std::vector<double>> RowRunner::SpansOf(const std::vector<Interval>& mine) {
  const auto ranks = static_cast<size_t>(world_->size());
  std::vector<Interval> all(mine.size() * ranks), one(ranks);
  Status s =
      world_->AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  if (!s.ok()) return s;
  std::vector<double> spans;
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t rank = 0; rank < ranks; ++rank) one[rank] = all[rank * mine.size() + i];
    spans.push_back(SpanOf(one) / static_cast<double>(options_->aggregated));
  }
  return spans;
}

Status RowRunner::Summarize(const Times& times, Measurement* m) {
  const size_t iterations = times.ours.size();
  std::vector<double> all(iterations * static_cast<size_t>(world_->size()));
  const auto combine = [&](const std::vector<double>& mine) -> Result<std::vector<double>> {
    Status s =
        world_->AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    if (!s.ok()) return s;
    return CombineRanks(all, iterations, options_->average);
  };
  Result<std::vector<double>> ours = combine(times.ours);
  if (!ours.ok()) return ours.status();
  m->time_us = Median(*ours);
  m->p99_us = Percentile(*ours, 0.99);
  m->max_us = Percentile(*ours, 1);
  m->algbw = AlgorithmBandwidth(buffers_.layout().bytes, m->time_us);
  m->busbw = m->algbw * BusFactor(buffers_.row().operation, world_->size());
  const auto compare = [&](const std::vector<double>& side) {
    const double median = Median(side);
    return Measurement::Side{.time_us = median,
                             .p99_us = Percentile(side, 0.99),
                             .max_us = Percentile(side, 1),
                             .ratio = median > 0 ? m->time_us / median : 0};
  };
  if (!times.baseline.empty()) {
    Result<std::vector<double>> baseline = combine(times.baseline);
    if (!baseline.ok()) return baseline.status();
    m->baseline = compare(*baseline);
  }
  if (times.limit.empty()) return {};
  Result<std::vector<double>> limit = SpansOf(times.limit);
  if (!limit.ok()) return limit.status();
  m->limit = compare(*limit);
  return {};
}

// ------------------------------------------------------------------------------------ results

Status RowRunner::AskWire(bool in_place, Measurement* m) {
  if (!HasCompressed(buffers_.row().operation)) return {};
  if (in_place) {
    if (Status s = buffers_.RestoreInPlace(); !s.ok()) return s;
  }
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  Status s =
      communicator_->RunCompressed(buffers_.CallFor(in_place), *buffers_.row().codec, &stats);
  if (s.ok()) s = Finish();
  if (!s.ok()) return s;
  Result<std::vector<ccl_compression_stats_t>> all = Gather(*world_, stats);
  if (!all.ok()) return all.status();
  Wire wire;
  double payload = 0, uncompressed = 0;
  for (const ccl_compression_stats_t& one : *all) {
    wire.bytes = std::max<uint64_t>(wire.bytes, one.wire_bytes);
    wire.error_bound = std::max(wire.error_bound, one.error_bound);
    wire.bits += one.bits / world_->size();
    payload += static_cast<double>(one.payload_bytes);
    uncompressed += static_cast<double>(one.payload_bytes) * one.ratio;
  }
  wire.ratio = payload > 0 ? uncompressed / payload : 1;
  wire.compressed = stats.compressed != 0;
  m->wire = wire;
  return {};
}

Status RowRunner::Check(bool in_place, Measurement* m) {
  const uint64_t rounds = std::max<uint64_t>(options_->checks, options_->digest ? 1 : 0);
  for (uint64_t round = 0; round < rounds; ++round) {
    ShowProgress(in_place, "check", round + 1, rounds);
    uint64_t digest = 0;
    Result<Accuracy> mine = CheckOnce(in_place, &digest);
    if (!mine.ok()) return mine.status();
    if (Status s = CompareDigests(digest, m); !s.ok()) return s;
    if (options_->checks == 0) continue;
    Result<std::vector<Accuracy>> all = Gather(*world_, *mine);
    if (!all.ok()) return all.status();
    if (!m->accuracy) m->accuracy.emplace();
    for (const Accuracy& accuracy : *all) m->accuracy->Add(accuracy);
  }
  return {};
}

Status RowRunner::CheckBaseline(bool in_place) {
  if (options_->checks == 0 || baseline_ == nullptr || !baseline_->Checked() ||
      !baseline_->Can(buffers_)) {
    return {};
  }
  if (Status s = buffers_.Poison(in_place); !s.ok()) return s;
  if (Status s = world_->Barrier(); !s.ok()) return s;
  Status s = baseline_->Run(buffers_, in_place);
  if (s.ok()) s = buffers_.Fetch(in_place);
  if (!s.ok()) return s;
  const ccl_compression_stats_t uncompressed = CCL_COMPRESSION_STATS_INIT;
  const uint64_t wrong = check_.Verify(buffers_, in_place, uncompressed).wrong;
  if (wrong == 0) return {};
  return InternalError(fmt::format("{}: {} elements are not those of the same call of inccl",
                                   baseline_->name(), wrong));
}

Result<Accuracy> RowRunner::CheckOnce(bool in_place, uint64_t* digest) {
  const uint64_t before = options_->checks > 0 ? Digest(buffers_.Input()) : 0;
  if (Status s = buffers_.Poison(in_place); !s.ok()) return s;
  if (Status s = world_->Barrier(); !s.ok()) return s;
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  Status s = CallOurs(buffers_.CallFor(in_place), &stats);
  if (s.ok()) s = Finish();
  if (s.ok()) s = buffers_.Fetch(in_place);
  if (!s.ok()) return s;
  *digest = Digest(buffers_.ResultBytes(in_place));
  if (options_->checks == 0) return Accuracy();
  Accuracy accuracy = check_.Verify(buffers_, in_place, stats);
  // Whatever lies around the result must be as it was.
  accuracy.wrong += buffers_.Disturbed(in_place);
  if (Digest(buffers_.Input()) != before) ++accuracy.wrong;
  return accuracy;
}

Status RowRunner::CompareDigests(uint64_t mine, Measurement* m) {
  Result<std::vector<uint64_t>> all = Gather(*world_, mine);
  if (!all.ok()) return all.status();
  const Operation operation = buffers_.row().operation;
  if (ReplicatesResult(operation)) {
    const bool same =
        std::all_of(all->begin(), all->end(), [&](uint64_t d) { return d == all->front(); });
    m->identical = m->identical.value_or(true) && same;
    m->digest = all->front();
  } else if (operation == Operation::kReduce || operation == Operation::kGather) {
    m->digest = (*all)[static_cast<size_t>(buffers_.row().root)];
  } else {
    m->digest = CombineDigests(*all);
  }
  return {};
}

}  // namespace inccl::perf
