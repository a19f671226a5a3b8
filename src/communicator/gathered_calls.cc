// SPDX-License-Identifier: Apache-2.0
//
// Small compressed all-reduces over long links. A codec whose ranks agree first takes two dependent
// messages where an uncompressed call takes one. So every rank sends all others its input as it is,
// and computes the compressed result of all ranks by itself: the same bits after one message.
#include <algorithm>

#include "base/log.h"
#include "communicator/collective_runner.h"
#include "compress/sum_of_inputs.h"
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

}  // namespace

bool CollectiveRunner::GathersInputs(const Call& call, const Engine* engine,
                                     const Choice& choice) const {
  if (slots_.under_way == 0 || call.codec == nullptr || engine != nullptr ||
      call.residual != nullptr || call.collective != Collective::kAllReduce ||
      call.count > kMostElements || choice.rule != TunerRule::kModel ||
      call.codec->side_phases().empty() || call.codec->route().group != 0) {
    return false;
  }
  const TunerCall gather = Tuned(GatherOf(call), false, hosts_);
  const Result<Choice> way = Choose(gather, options_.algorithms, options_.tuner_table);
  if (!way.ok()) return false;
  CostConstants costs = options_.tuner_table.costs();
  costs.network_byte_ps = std::max(costs.network_byte_ps, kLeastBytePs);
  const uint64_t elements = call.count * static_cast<uint64_t>(call.nranks);
  constexpr uint64_t kPsPerNs = 1000;
  const uint64_t ns = EstimateCost(gather, way->algorithm, costs).ns +
                      elements * (costs.encode_element_ps + costs.decode_element_ps) / kPsPerNs;
  return ns < choice.estimates_ns[static_cast<size_t>(choice.algorithm)];
}

Status CollectiveRunner::RunGathered(const Call& call, uint64_t signature) {
  Log(LogLevel::kInfo, LogSubsystem::kTuning,
      "{} op {}: instead, every rank sends its input and computes the result of all: one message "
      "fewer in a row",
      name_, sequence_);
  rounds_.received.resize(call.bytes() * static_cast<size_t>(call.nranks));
  Call inner = GatherOf(call);
  inner.recv = rounds_.received.data();
  if (Status status = RunRound(inner, false, signature); !status.ok()) return status;
  CodecStats stats;
  Status status = SumOfInputs(*call.codec, ArgsOf(call), rounds_.received,
                              static_cast<std::byte*>(call.recv), &stats);
  if (status.ok()) FillStats(call, stats, true);
  return status;
}

}  // namespace inccl
