// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/row_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "perf/support/digest.h"
#include "perf/support/element.h"
#include "perf/support/statistics.h"
#ifdef INCCL_PERF_HAVE_MPI
#include "perf/support/mpi_world.h"
#endif

namespace inccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLine = 64;
constexpr size_t kMostOwned = size_t{16} << 20;  // more does not stay in caches

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

Result<RowRunner> RowRunner::Create(World& world, const BenchOptions& options,
                                    const Communicator& communicator, const Inputs& inputs,
                                    ProgressLine* progress) {
  RowRunner runner(world, options, communicator, inputs, progress);
  Result<Buffer> send = Buffer::Allocate(options.max_bytes, options.mem_alloc);
  if (!send.ok()) return send.status();
  Result<Buffer> recv = Buffer::Allocate(options.max_bytes, options.mem_alloc);
  if (!recv.ok()) return recv.status();
  runner.send_ = *std::move(send);
  runner.recv_ = *std::move(recv);
  return runner;
}

Result<Row> RowRunner::Run(const RowCase& row_case) {
  case_ = row_case;
  layout_ = LayoutOf(case_.operation, case_.bytes, case_.type, world_->size(), world_->rank());
  FillSend();
  if (options_->checks > 0 && Reduces(case_.operation) &&
      (!oracle_ || oracle_->type != case_.type || oracle_->op != case_.op)) {
    oracle_ = MakeOracle(*inputs_, case_.type, case_.op);
  }
  Row row;
  row.operation = case_.operation;
  row.codec = case_.codec->given();
  row.codec_spec = case_.codec->canonical();
  row.nranks = world_->size();
  row.bytes = layout_.bytes;
  row.count = layout_.count;
  row.type = case_.type;
  row.op = case_.op;
  row.root = case_.root;
  for (const bool in_place : {false, true}) {
    if (in_place && !HasInPlace(case_.operation)) continue;
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
  return m;
}

// ------------------------------------------------------------------------------ calls and buffers

BenchCall RowRunner::CallFor(bool in_place) const {
  const size_t element = SizeOf(case_.type);
  BenchCall call{case_.operation, case_.type, case_.op, case_.root,
                 layout_.count,   nullptr,    nullptr};
  call.send = in_place ? recv_.data() + layout_.in_place_send * element : send_.data();
  call.recv = recv_.data() + (in_place ? layout_.in_place_recv * element : 0);
  return call;
}

Status RowRunner::CallOurs(const BenchCall& call, ccl_compression_stats_t* stats) const {
  if (case_.codec->none()) return communicator_->Run(call);
  return communicator_->RunCompressed(call, *case_.codec, stats);
}

void RowRunner::FillSend() {
  inputs_->Fill(world_->rank(), case_.type, case_.op, 0, layout_.send, send_.data());
}

void RowRunner::RestoreInPlace() {
  const size_t element = SizeOf(case_.type);
  std::memcpy(recv_.data() + layout_.in_place_send * element, send_.data(), layout_.send * element);
}

// The side before has perhaps let other ranks read what this one received; then each line costs a
// message to their caches when it is written, which is not this side's doing.
void RowRunner::MakeReady(bool in_place) {
  if (in_place) return RestoreInPlace();
  const size_t bytes = layout_.recv * SizeOf(case_.type);
  if (bytes > kMostOwned) return;
  for (size_t at = 0; at < bytes; at += kLine) {
    volatile std::byte& byte = recv_.data()[at];
    byte = byte;
  }
}

void RowRunner::Poison(bool in_place) {
  const size_t element = SizeOf(case_.type);
  const uint64_t used = (in_place ? layout_.in_place : layout_.recv) * element;
  std::memset(recv_.data(), static_cast<int>(kPoison), used + kGuardBytes);
  std::memset(send_.Guard(layout_.send * element).data(), static_cast<int>(kPoison), kGuardBytes);
  const bool root_sends =
      case_.operation == Operation::kBroadcast || case_.operation == Operation::kScatter;
  if (in_place && (!root_sends || world_->rank() == case_.root)) RestoreInPlace();
}

// ------------------------------------------------------------------------------------ time

bool RowRunner::HasBaseline() const {
#ifdef INCCL_PERF_HAVE_MPI
  return options_->baseline_mpi && MpiCan({case_.operation, case_.type, case_.op, case_.root,
                                           layout_.count, false, nullptr, nullptr});
#else
  return false;
#endif
}

Result<double> RowRunner::TimeOurs(bool in_place) {
  const BenchCall call = CallFor(in_place);
  MakeReady(in_place);
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    if (Status s = CallOurs(call, nullptr); !s.ok()) return s;
  }
  return MicrosecondsSince(start) / static_cast<double>(options_->aggregated);
}

Result<double> RowRunner::TimeBaseline(bool in_place) {
#ifdef INCCL_PERF_HAVE_MPI
  const MpiCall call{case_.operation, case_.type, case_.op,     case_.root,
                     layout_.count,   in_place,   send_.data(), recv_.data()};
  MakeReady(in_place);
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const Clock::time_point start = Clock::now();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    if (Status s = RunMpi(call); !s.ok()) return s;
  }
  return MicrosecondsSince(start) / static_cast<double>(options_->aggregated);
#else
  return InternalError(fmt::format("built without MPI; in place {}", in_place));
#endif
}

// In place too the input is copied to another place: what is read and written is as much.
Result<Interval> RowRunner::TimeLimit(bool in_place) {
  const Streams streams =
      StreamsOf(case_.operation, layout_, case_.type, world_->rank(), case_.root);
  MakeReady(in_place);
  if (Status s = world_->Barrier(); !s.ok()) return s;
  const double start = SharedMicroseconds();
  for (uint64_t i = 0; i < options_->aggregated; ++i) {
    StreamOnce({send_.data(), streams.read}, {recv_.data(), streams.write});
  }
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
  if (HasBaseline()) sides.push_back(Side::kBaseline);
  if (options_->limit) sides.push_back(Side::kLimit);
  const uint64_t total = options_->warmup + options_->iterations;
  for (uint64_t i = 0; i < total; ++i) {
    if (progress_->Due()) {
      progress_->Show(fmt::format("{} B {} {} {}: iteration {} of {}", layout_.bytes,
                                  TableName(case_.type), case_.codec->given(),
                                  in_place ? "in place" : "out of place", i + 1, total));
    }
    for (const Side side : sides) {
      if (Status s = RunSide(side, in_place, i >= options_->warmup, &times); !s.ok()) return s;
    }
    // In the other order next time, so that none always runs in the same one's wake.
    std::reverse(sides.begin(), sides.end());
  }
  return times;
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
  m->algbw = AlgorithmBandwidth(layout_.bytes, m->time_us);
  m->busbw = m->algbw * BusFactor(case_.operation, world_->size());
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
  if (!HasCompressed(case_.operation)) return {};
  if (in_place) RestoreInPlace();
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  Status s = communicator_->RunCompressed(CallFor(in_place), *case_.codec, &stats);
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

std::span<const std::byte> RowRunner::ResultBytes(bool in_place) const {
  const auto* data = static_cast<const std::byte*>(CallFor(in_place).recv);
  return {data, layout_.recv * SizeOf(case_.type)};
}

Status RowRunner::Check(bool in_place, Measurement* m) {
  const uint64_t rounds = std::max<uint64_t>(options_->checks, options_->digest ? 1 : 0);
  for (uint64_t round = 0; round < rounds; ++round) {
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

Result<Accuracy> RowRunner::CheckOnce(bool in_place, uint64_t* digest) {
  const size_t element = SizeOf(case_.type);
  const std::span<const std::byte> input(send_.data(), layout_.send * element);
  const uint64_t before = options_->checks > 0 ? Digest(input) : 0;
  Poison(in_place);
  if (Status s = world_->Barrier(); !s.ok()) return s;
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  if (Status s = CallOurs(CallFor(in_place), &stats); !s.ok()) return s;
  *digest = Digest(ResultBytes(in_place));
  if (options_->checks == 0) return Accuracy();
  Accuracy accuracy = VerifyResult(in_place, stats);
  // Whatever lies around the result must be as it was.
  const uint64_t used = (in_place ? layout_.in_place : layout_.recv) * element;
  accuracy.wrong += CountDisturbed(recv_.Guard(used)) + CountDisturbed(send_.Guard(input.size()));
  if (Digest(input) != before) ++accuracy.wrong;
  return accuracy;
}

Accuracy RowRunner::VerifyResult(bool in_place, const ccl_compression_stats_t& stats) {
  std::byte* result = static_cast<std::byte*>(CallFor(in_place).recv);
  const bool lossy = !case_.codec->none() && stats.compressed != 0;
  const std::optional<double> bound = lossy ? std::optional(stats.error_bound) : std::nullopt;
  // A lossless codec's sum is rounded as an uncompressed one.
  const std::optional<double> sum_bound = stats.error_bound > 0 ? bound : std::nullopt;
  switch (case_.operation) {
    case Operation::kAllReduce:
      return VerifyReduction(*oracle_, 0, result, layout_.count, sum_bound);
    case Operation::kReduceScatter:
      return VerifyReduction(*oracle_, layout_.count * static_cast<uint64_t>(world_->rank()),
                             result, layout_.count, sum_bound);
    case Operation::kReduce:
      if (world_->rank() != case_.root) return VerifyUntouched(in_place);
      return VerifyReduction(*oracle_, 0, result, layout_.count, bound);
    case Operation::kGather:
      if (world_->rank() != case_.root) return VerifyUntouched(in_place);
      return VerifyCopies(result, std::nullopt);
    case Operation::kAllGather:
    case Operation::kBroadcast:
    case Operation::kAllToAll:
    case Operation::kScatter:
    case Operation::kSendRecv: return VerifyCopies(result, bound);
  }
  return Accuracy();
}

// What is received from each rank, or from one alone: the first `count` elements of its send
// buffer, or those for this rank; with `bound`, through a lossy codec.
Accuracy RowRunner::VerifyCopies(const std::byte* result, std::optional<double> bound) const {
  Accuracy accuracy;
  const Operation what = case_.operation;
  const bool from_root = what == Operation::kBroadcast || what == Operation::kScatter;
  const bool from_one = from_root || what == Operation::kSendRecv;
  const int sender = from_root ? case_.root : PreviousRank(world_->rank(), world_->size());
  const bool parted = what == Operation::kAllToAll || what == Operation::kScatter;
  const uint64_t first = parted ? layout_.count * static_cast<uint64_t>(world_->rank()) : 0;
  const size_t bytes = layout_.count * SizeOf(case_.type);
  std::vector<std::byte> expected(bytes);
  for (int part = 0; part < (from_one ? 1 : world_->size()); ++part) {
    inputs_->Fill(from_one ? sender : part, case_.type, case_.op, first, layout_.count,
                  expected.data());
    const std::byte* got = result + static_cast<size_t>(part) * bytes;
    accuracy.Add(bound ? VerifyLossyCopy(case_.type, expected.data(), got, layout_.count, *bound)
                       : VerifyCopy(case_.type, expected.data(), got, layout_.count));
  }
  return accuracy;
}

// The receive buffer of a rank that receives nothing: poison, but for the input in place.
Accuracy RowRunner::VerifyUntouched(bool in_place) const {
  const size_t element = SizeOf(case_.type);
  const std::span<const std::byte> all(recv_.data(), layout_.recv * element);
  if (!in_place) return Accuracy{CountDisturbed(all), 0, 0, 0};
  const size_t begin = layout_.in_place_send * element, size = layout_.send * element;
  Accuracy accuracy = VerifyCopy(case_.type, send_.data(), all.data() + begin, layout_.send);
  accuracy.wrong +=
      CountDisturbed(all.first(begin)) + CountDisturbed(all.subspan(begin).subspan(size));
  return accuracy;
}

Status RowRunner::CompareDigests(uint64_t mine, Measurement* m) {
  Result<std::vector<uint64_t>> all = Gather(*world_, mine);
  if (!all.ok()) return all.status();
  if (ReplicatesResult(case_.operation)) {
    const bool same =
        std::all_of(all->begin(), all->end(), [&](uint64_t d) { return d == all->front(); });
    m->identical = m->identical.value_or(true) && same;
    m->digest = all->front();
  } else if (case_.operation == Operation::kReduce || case_.operation == Operation::kGather) {
    m->digest = (*all)[static_cast<size_t>(case_.root)];
  } else {
    m->digest = CombineDigests(*all);
  }
  return {};
}

}  // namespace inccl::perf
