// SPDX-License-Identifier: Apache-2.0
#include "tools/info/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/call.h"
#include "compress/codecs.h"
#include "transport/mapped/mapped_transport.h"
#include "transport/transport.h"
#include "tuning/segmentation.h"
#include "verify/validate.h"

namespace inccl::tools {
namespace {

const HostMap* HostsOf(const ExplainRequest& request) {
  return request.hosts.nranks() == 0 ? nullptr : &request.hosts;
}

// Adds what `schedule` sends in one window.
class RowCounter {
 public:
  RowCounter(const Schedule& schedule, const Chunking& chunking, const ExplainRequest& request,
             const Codec* codec)
      : schedule_(schedule),
        chunking_(chunking),
        type_(request.type),
        hosts_(HostsOf(request)),
        codec_(codec) {}

  RankTraffic Count(uint64_t window) {
    traffic_ = {};
    for (const Strand& strand : schedule_.strands) {
      const Phase& phase = schedule_.phases[strand.phase];
      for (const Step& step : strand.steps) {
        for (uint32_t i = 0; i < step.outputs; ++i) {
          const Operand& output = schedule_.operands[step.first_operand + step.inputs + i];
          if (output.space != Space::kLane) continue;
          const Range part = chunking_.Part(window, phase, output.chunk, strand.channel);
          AddPart(part, phase, schedule_.lanes[output.index].consumers);
        }
      }
    }
    return traffic_;
  }

 private:
  void AddPart(const Range& part, const Phase& phase, const std::vector<int>& consumers) {
    const uint64_t receivers = consumers.size();
    const auto across =
        static_cast<uint64_t>(std::count_if(consumers.begin(), consumers.end(), [&](int consumer) {
          return hosts_ != nullptr && !hosts_->SameHost(schedule_.rank, consumer);
        }));
    const uint32_t slices = chunking_.Slices(part, phase);
    traffic_.slices += slices * receivers;
    if (codec_ != nullptr) {
      traffic_.uncounted_bytes += codec_->UncountedBytes() * slices * receivers;
    }
    for (uint32_t s = 0; s < slices; ++s) {
      const Range slice = chunking_.Slice(part, phase, s);
      if (phase.lane_class == LaneClass::kSide) {
        const uint64_t bytes = codec_->SideBytes(slice.count) * receivers;
        traffic_.side_bytes += bytes;
        traffic_.most_bytes += bytes;
        continue;
      }
      const uint64_t raw = uint64_t{slice.count} * SizeOf(type_);
      const uint64_t most =
          codec_ == nullptr ? raw : codec_->MaxBytes(type_, schedule_.nranks, slice.count);
      traffic_.raw_bytes += raw * receivers;
      traffic_.across_bytes += raw * across;
      traffic_.most_bytes += most * receivers;
    }
  }

  const Schedule& schedule_;
  const Chunking& chunking_;
  DataType type_;
  const HostMap* hosts_;
  const Codec* codec_;
  RankTraffic traffic_;
};

void Add(const RankTraffic& window, uint64_t times, RankTraffic* total) {
  total->slices += window.slices * times;
  total->raw_bytes += window.raw_bytes * times;
  total->across_bytes += window.across_bytes * times;
  total->side_bytes += window.side_bytes * times;
  total->most_bytes += window.most_bytes * times;
  total->uncounted_bytes += window.uncounted_bytes * times;
}

// Inside a host the producer has the slots of a lane. Between hosts each end has them, and each
// consumer has a lane of its own.
uint64_t MemoryOf(const Schedule& schedule, const SlotOptions& slots, uint32_t group,
                  const HostMap* hosts) {
  uint64_t bytes = 0;
  for (const ScheduleLane& lane : schedule.lanes) {
    const bool side = lane.lane_class == LaneClass::kSide;
    const uint32_t slot_bytes = side ? slots.side_bytes : slots.data_bytes;
    const uint16_t depth = side ? slots.side_depth : slots.data_depth;
    const uint16_t network_depth = side ? slots.network_side_depth : slots.network_data_depth;
    bool shared = false;
    for (const int consumer : lane.consumers) {
      if (schedule.rank != lane.producer && schedule.rank != consumer) continue;
      if (hosts != nullptr && !hosts->SameHost(lane.producer, consumer)) {
        bytes += mapped::SlotsBytes(slot_bytes, network_depth);
      } else if (schedule.rank == consumer) {
        bytes += mapped::CreditBytes(depth);
      } else if (!std::exchange(shared, true)) {
        bytes += mapped::SlotsBytes(slot_bytes, depth);
      }
    }
  }
  return bytes + uint64_t{schedule.scratch_slots} * group * 2 * slots.data_bytes;
}

// The schedules of all ranks are made and proven.
constexpr int kMostRanks = 256;

Status Check(const ExplainRequest& request) {
  const size_t element = SizeOf(request.type);
  if (request.bytes % element != 0) {
    return InvalidArgument(fmt::format("{} bytes are no whole number of {} elements of {} bytes",
                                       request.bytes, Name(request.type), element));
  }
  if (request.nranks < 1 || request.nranks > kMostRanks) {
    return InvalidArgument(fmt::format("{} ranks are not in [1, {}]", request.nranks, kMostRanks));
  }
  if (request.root < 0 || request.root >= request.nranks) {
    return InvalidArgument(fmt::format("root {} is not in [0, {})", request.root, request.nranks));
  }
  const bool compressible = request.collective == Collective::kAllReduce ||
                            request.collective == Collective::kReduceScatter ||
                            request.collective == Collective::kAllGather;
  if (request.compressed && !compressible) {
    return InvalidArgument(
        fmt::format("{}: this version compresses allreduce, reduce_scatter and allgather only",
                    Name(request.collective)));
  }
  return Status::Ok();
}

void DecideCodec(const ExplainRequest& request, const CommOptions& options, Explanation* result) {
  if (!request.compressed) return;
  const std::shared_ptr<const Codec>& codec = options.default_codec;
  const Status unsupported =
      codec->Supports(request.collective, request.type, request.op, std::max(2, request.nranks));
  if (codec == IdentityCodec()) {
    result->uncompressed_because = "the codec is none";
  } else if (!unsupported.ok()) {
    result->uncompressed_because = unsupported.message();
  } else if (request.bytes < codec->min_bytes()) {
    result->below_min_bytes = true;
    result->uncompressed_because = fmt::format("{} bytes are below the codec's min_bytes of {}",
                                               request.bytes, codec->min_bytes());
  } else if (request.nranks == 1) {
    result->uncompressed_because = "one rank only copies";
  } else if (codec->route().sums_hosts && Reduces(request.collective) &&
             HostsOf(request) == nullptr) {
    result->uncompressed_because = "the sum of one host goes to no other";
  } else {
    result->codec = codec;
  }
}

// Whether the codec's promise of bits is about this algorithm.
bool IsReference(const Codec& codec, double bits, Collective collective, Algorithm algorithm) {
  if (bits == 0) return false;                            // the data decides
  if (collective == Collective::kAllGather) return true;  // payloads are those of the sender
  const Result<CodecSpec> spec = CodecSpec::Parse(codec.spec());
  const std::string* reference = spec.ok() ? spec->Find("ref") : nullptr;
  return reference == nullptr ? algorithm == Algorithm::kTwoShot : *reference == Name(algorithm);
}

Result<std::vector<Schedule>> MakeSchedules(const ExplainRequest& request,
                                            const Explanation& explanation,
                                            const CommOptions& options) {
  const Codec& codec = explanation.codec != nullptr ? *explanation.codec : *IdentityCodec();
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < request.nranks; ++rank) {
    Result<Schedule> schedule = MakeSchedule({{.collective = request.collective,
                                               .nranks = request.nranks,
                                               .rank = rank,
                                               .root = request.root},
                                              explanation.choice->algorithm,
                                              options.channels,
                                              codec.side_phases().size(),
                                              explanation.choice->side_one_shot,
                                              codec.route().group,
                                              HostsOf(request)});
    if (!schedule.ok()) return schedule.status();
    schedules.push_back(*std::move(schedule));
  }
  return schedules;
}

}  // namespace

std::optional<uint64_t> Explanation::ExpectedBytes(const RankTraffic& rank, DataType type) const {
  if (codec == nullptr) return rank.most_bytes;
  if (!reference) return std::nullopt;
  const double elements = static_cast<double>(rank.raw_bytes) / static_cast<double>(SizeOf(type));
  const auto counted = static_cast<uint64_t>(elements * codec_bits / 8);
  return std::min(rank.most_bytes, counted + rank.uncounted_bytes);
}

Result<Explanation> Explain(const ExplainRequest& request, const CommOptions& options) {
  if (Status status = Check(request); !status.ok()) return status;
  Explanation result;
  result.count = request.bytes / SizeOf(request.type);
  DecideCodec(request, options, &result);
  result.ranks.resize(static_cast<size_t>(request.nranks));
  if (request.nranks == 1) {
    result.why = "one rank only copies";
    return result;
  }
  const TunerCall call{{.collective = request.collective,
                        .type = request.type,
                        .nranks = request.nranks,
                        .count = result.count},
                       result.codec != nullptr,
                       options.reproducible,
                       result.codec != nullptr ? result.codec->route() : Route{},
                       result.below_min_bytes,
                       HostsOf(request),
                       {.bytes = options.slot_bytes_max,
                        .slice_bytes = options.slice_bytes,
                        .channels = options.channels,
                        .shared_slots = true,
                        .under_way = UnderWay(options.tuner_table.costs(), HostsOf(request))},
                       result.codec != nullptr
                           ? WireBitsOf(*result.codec, request.collective, request.nranks)
                           : WireBits()};
  if (result.codec != nullptr &&
      SumsHosts(result.codec->route(), request.collective, HostsOf(request))) {
    return InvalidArgument(fmt::format(
        "codec {}: ranks of a host add up their elements first, so the call is a sequence of "
        "collectives; ask for the one between the {} hosts, of one rank each",
        result.codec->spec(), HostsOf(request)->hosts()));
  }
  if (result.codec != nullptr) {
    Status unfit = result.codec->Fits(request.collective, request.nranks);
    if (!unfit.ok()) return unfit;
  }
  Result<Choice> choice = Choose(call, options.algorithms, options.tuner_table);
  if (!choice.ok()) return choice.status();
  result.choice = *choice;
  result.why = inccl::Explain(call, *choice);
  const std::shared_ptr<const Codec> codec =
      result.codec != nullptr ? result.codec : IdentityCodec();
  result.agreement = !codec->side_phases().empty();

  Result<std::vector<Schedule>> schedules = MakeSchedules(request, result, options);
  if (!schedules.ok()) return schedules.status();
  Result<Proof> proof = Validate(*schedules);
  if (!proof.ok()) return proof.status();
  result.steps = proof->steps;

  const uint32_t slice_bytes = SliceBytesFor(request.collective, choice->algorithm, request.nranks,
                                             HostsOf(request), call.slots);
  result.slots = SlotsOf(request.collective, choice->algorithm, request.nranks, HostsOf(request),
                         call.slots, slice_bytes);
  const Chunking chunking =
      CutCall(call, *codec, options.channels, slice_bytes,
              LongLinksFor(result.slots, HostsOf(request), call.slots.under_way));
  result.windows = chunking.windows();
  result.window_elements = chunking.options().window_elements;
  result.slice_elements = chunking.options().slice_elements;
  result.group = chunking.options().group;
  if (result.codec != nullptr) {
    double error = 0;
    result.codec->Bound(request.collective, request.nranks, &result.codec_bits, &error);
    result.reference =
        IsReference(*result.codec, result.codec_bits, request.collective, choice->algorithm);
  }
  for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const Schedule& schedule = (*schedules)[rank];
    RankTraffic& traffic = result.ranks[rank];
    traffic.memory_bytes = MemoryOf(schedule, result.slots, result.group, HostsOf(request));
    if (result.windows == 0) continue;
    // All windows but the last are alike.
    RowCounter counter(schedule, chunking, request, result.codec.get());
    if (result.windows > 1) Add(counter.Count(0), result.windows - 1, &traffic);
    Add(counter.Count(result.windows - 1), 1, &traffic);
  }
  return result;
}

}  // namespace inccl::tools
