// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/rng.h"
#include "inccl/ccl.h"
#include "perf/support/agree.h"
#include "perf/support/cause.h"
#include "perf/support/layout.h"
#include "perf/support/output.h"
#include "perf/support/statistics.h"
#include "perf/support/streaming.h"
#include "tuning/tuner.h"

namespace inccl::tools {
namespace {

struct DestroyComm {
  void operator()(ccl_comm_t comm) const { ccl_comm_destroy(comm); }
};
struct DestroyCodec {
  void operator()(ccl_codec_t codec) const { ccl_codec_destroy(codec); }
};
using Comm = std::unique_ptr<ccl_comm, DestroyComm>;
using CodecHandle = std::unique_ptr<ccl_codec, DestroyCodec>;

Status From(ccl_result_t result, const std::string& what, ccl_comm_t comm) {
  if (result == CCL_SUCCESS) return {};
  return {static_cast<Code>(result), fmt::format("{}: {}", what, ccl_get_last_error(comm))};
}

// What INCCL_ALGO calls it: there "direct" means both.
std::string FilterName(Algorithm algorithm) {
  return algorithm == Algorithm::kTwoShot ? "direct_two_shot" : Name(algorithm);
}

// A communicator for each algorithm.
Result<std::map<Algorithm, Comm>> MakeComms(perf::World& world) {
  std::map<Algorithm, Comm> comms;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    const std::string name = FilterName(algorithm);
    const Result<ccl_unique_id_t> id = perf::ShareUniqueId(world);
    if (!id.ok()) return id.status();
    ccl_config_t config = CCL_CONFIG_INIT;
    config.algorithm = name.c_str();
    ccl_comm_t comm = nullptr;
    const Status s =
        From(ccl_comm_init_rank_config(&comm, world.size(), *id, world.rank(), &config),
             "ccl_comm_init_rank_config", nullptr);
    if (!s.ok()) return s;
    comms[algorithm].reset(comm);
  }
  return comms;
}

class Measurer {
 public:
  Measurer(perf::World& world, const TuneOptions& options, const Codec& spec,
           std::map<Algorithm, Comm> comms, CodecHandle codec)
      : world_(world),
        options_(options),
        comms_(std::move(comms)),
        codec_(std::move(codec)),
        send_(options.sizes.back() / sizeof(float)),
        recv_(options.sizes.back() / sizeof(float)) {
    // Compression is not asked to do with less than numbers.
    Rng rng(static_cast<uint64_t>(world.rank()));
    for (float& x : send_) x = static_cast<float>(rng.Below(1 << 20)) / (1 << 19) - 1;
    for (const Collective collective : options.collectives) {
      if (!perf::HasCompressed(perf::OperationOf(collective))) continue;
      wire_bits_[collective] = WireBitsOf(spec, collective, world.size());
    }
  }

  // The samples of one collective and kind; fewer than two algorithms give none.
  Result<std::vector<TuneSample>> Measure(Collective collective, bool compressed) {
    std::vector<TuneSample> samples;
    for (const uint64_t size : options_.sizes) {
      const perf::Layout layout = perf::LayoutOf(perf::OperationOf(collective), size,
                                                 DataType::kFloat32, world_.size(), world_.rank());
      if (layout.count == 0) continue;
      TuneSample sample{layout.count * sizeof(float), Algorithm::kTwoShot, {}};
      const std::vector<Algorithm> algorithms = Candidates(collective, compressed);
      if (algorithms.size() < 2) return samples;
      TunerCall call{{.collective = collective, .nranks = world_.size(), .count = layout.count},
                     compressed};
      call.hosts = options_.hosts;
      if (compressed) call.wire = wire_bits_.at(collective);
      Result<Choice> choice = Choose(call, AlgorithmFilter(),
                                     options_.table == nullptr ? TunerTable() : *options_.table);
      if (!choice.ok()) return choice.status();
      sample.by_default = choice->algorithm;
      if (Status s = Time(collective, compressed, layout, algorithms, &sample); !s.ok()) return s;
      if (!samples.empty() && samples.back().bytes == sample.bytes) continue;
      samples.push_back(std::move(sample));
    }
    return samples;
  }

 private:
  std::vector<Algorithm> Candidates(Collective collective, bool compressed) {
    std::vector<Algorithm> algorithms;
    for (const auto& [algorithm, comm] : comms_) {
      if (!HasSchedule(collective, algorithm, world_.size(), options_.hosts)) continue;
      if (compressed && !Runs(comm.get(), collective)) continue;
      algorithms.push_back(algorithm);
    }
    return algorithms;
  }

  // Whether the codec goes over the communicator's algorithm: all ranks find the same.
  bool Runs(ccl_comm_t comm, Collective collective) {
    return Call(collective, true, 0, comm) == CCL_SUCCESS;
  }

  ccl_result_t Call(Collective collective, bool compressed, uint64_t count, ccl_comm_t comm) {
    const void* const send = send_.data();
    void* const recv = recv_.data();
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.codec = codec_.get();
    const ccl_compression_t* const how = &compression;
    switch (collective) {
      case Collective::kAllReduce:
        return compressed ? ccl_allreduce_compressed(send, recv, count, CCL_FLOAT32, CCL_SUM, how,
                                                     comm, nullptr)
                          : ccl_allreduce(send, recv, count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      case Collective::kReduceScatter:
        return compressed
                   ? ccl_reduce_scatter_compressed(send, recv, count, CCL_FLOAT32, CCL_SUM, how,
                                                   comm, nullptr)
                   : ccl_reduce_scatter(send, recv, count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
      case Collective::kAllGather:
        return compressed
                   ? ccl_allgather_compressed(send, recv, count, CCL_FLOAT32, how, comm, nullptr)
                   : ccl_allgather(send, recv, count, CCL_FLOAT32, comm, nullptr);
      case Collective::kBroadcast:
        return ccl_broadcast(send, recv, count, CCL_FLOAT32, 0, comm, nullptr);
      case Collective::kReduce:
        return ccl_reduce(send, recv, count, CCL_FLOAT32, CCL_SUM, 0, comm, nullptr);
      case Collective::kAllToAll:
        return ccl_alltoall(send, recv, count, CCL_FLOAT32, comm, nullptr);
      case Collective::kGather: return ccl_gather(send, recv, count, CCL_FLOAT32, 0, comm, nullptr);
      case Collective::kScatter:
        return ccl_scatter(send, recv, count, CCL_FLOAT32, 0, comm, nullptr);
    }
    return CCL_INTERNAL_ERROR;
  }

  // The medians of all algorithms, which take turns; the first turn does not count.
  Status Time(Collective collective, bool compressed, const perf::Layout& layout,
              const std::vector<Algorithm>& algorithms, TuneSample* sample) {
    std::map<Algorithm, std::vector<double>> times;
    for (uint64_t i = 0; i < options_.iterations + 1; ++i) {
      for (const Algorithm algorithm : algorithms) {
        const ccl_comm_t comm = comms_.at(algorithm).get();
        if (Status s = world_.Barrier(); !s.ok()) return perf::WithCause(s, comm);
        const double start = perf::SharedMicroseconds();
        const ccl_result_t result = Call(collective, compressed, layout.count, comm);
        const double mine = perf::SharedMicroseconds() - start;
        if (Status s = From(result, Name(collective), comm); !s.ok()) return s;
        if (i > 0) times[algorithm].push_back(mine);
      }
    }
    for (const auto& [algorithm, mine] : times) {
      // Of the rank that took longest, as all ranks shall come to the same result.
      std::vector<double> all(mine.size() * static_cast<size_t>(world_.size()));
      const Status s =
          world_.AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
      if (!s.ok()) return s;
      sample->times[algorithm] =
          perf::Median(perf::CombineRanks(all, mine.size(), perf::Average::kMax));
      if (options_.verbose && world_.rank() == 0) {
        perf::PrintError("{} {} {} {} {}: {:.2f} us{}\n", Name(collective), world_.size(),
                         compressed ? "compressed" : "plain", sample->bytes, Name(algorithm),
                         sample->times[algorithm],
                         algorithm == sample->by_default ? " (default)" : "");
      }
    }
    return {};
  }

  perf::World& world_;
  const TuneOptions& options_;
  std::map<Algorithm, Comm> comms_;
  CodecHandle codec_;
  std::map<Collective, WireBits> wire_bits_;
  std::vector<float> send_, recv_;
};

}  // namespace

Result<std::vector<TuneSamples>> MeasureSamples(perf::World& world, const TuneOptions& options) {
  ccl_codec_t codec = nullptr;
  if (Status s = From(ccl_codec_create(&codec, options.codec.c_str()), "--codec", nullptr);
      !s.ok()) {
    return s;
  }
  CodecHandle handle(codec);
  Result<std::shared_ptr<const Codec>> made = MakeCodec(options.codec);
  if (!made.ok()) return made.status();
  Result<std::map<Algorithm, Comm>> comms = MakeComms(world);
  if (!comms.ok()) return comms.status();
  Measurer measurer(world, options, **made, *std::move(comms), std::move(handle));
  std::vector<TuneSamples> all;
  for (const Collective collective : options.collectives) {
    for (const bool compressed : {false, true}) {
      if (compressed &&
          (options.codec == "none" || !perf::HasCompressed(perf::OperationOf(collective))))
        continue;
      Result<std::vector<TuneSample>> samples = measurer.Measure(collective, compressed);
      if (!samples.ok()) return samples.status();
      all.push_back({collective, compressed, *std::move(samples)});
    }
  }
  // No rank leaves while another one still measures.
  if (Status s = world.Barrier(); !s.ok()) return s;
  return all;
}

Result<std::vector<TunerRow>> MeasureRows(perf::World& world, const TuneOptions& options) {
  Result<std::vector<TuneSamples>> measured = MeasureSamples(world, options);
  if (!measured.ok()) return measured.status();
  std::vector<TunerRow> rows;
  for (const TuneSamples& of_kind : *measured) {
    const TunerRow group{
        .collective = of_kind.collective, .nranks = world.size(), .compressed = of_kind.compressed};
    for (const TunerRow& row : RowsOf(group, of_kind.samples, options.margin)) rows.push_back(row);
  }
  return rows;
}

}  // namespace inccl::tools
