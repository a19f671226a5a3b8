// SPDX-License-Identifier: Apache-2.0
//
// Times of all-reduces on many ranks, simulated with the library's schedules (docs/scaling.md).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "perf/scaling/estimate.h"
#include "perf/scaling/fleet.h"
#include "perf/scaling/simulation.h"
#include "perf/support/output.h"
#include "tuning/segmentation.h"
#include "tuning/tuner.h"

namespace inccl::perf {
namespace {

struct Options {
  std::vector<int> ranks = {4, 16, 64};
  int per_host = 8;
  std::vector<uint64_t> bytes = {64u << 20};
  std::vector<std::string> codecs = {"none", "hbi:bits=6"};
  std::vector<double> gbps = {10};
  int sites = 1;
  double round_trip_ms = 20;
  std::vector<std::string> algorithms = {"auto"};
  std::optional<uint64_t> slot_bytes_max;
  uint32_t slice_bytes = 128 * 1024;
  bool offload = false, estimate_only = false;
  Machine machine;
  std::string json;
};

struct Row {
  int ranks = 0;
  uint64_t bytes = 0;
  std::string codec;
  Choice choice;
  bool is_choice = false;    // the library would take this algorithm
  bool over_budget = false;  // its slots take more than --slot-bytes-max
  uint32_t slice_bytes = 0;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Program {
 public:
  explicit Program(const Options& options) : options_(options) {
    if (options_.offload) options_.machine = WithOffload(options_.machine);
    if (!options_.json.empty()) json_.open(options_.json, std::ios::app);
  }

  Status Run() {
    PrintOut("{:>6} {:>9} {:>12} {:>18} {:>6} {:>12} {:>12} {:>10} {:>12} {:>8}\n", "ranks",
             "bytes", "codec", "algorithm", "Gbit/s", "simulated_us", "estimate_us", "busy_us",
             "sent_host", "wall_s");
    for (const int ranks : options_.ranks) {
      for (const std::string& algorithm : options_.algorithms) {
        if (Status status = RunRanks(ranks, algorithm); !status.ok()) return status;
      }
    }
    return Status::Ok();
  }

 private:
  // What ranks know of the links.
  TunerTable TableFor(double gbps) const {
    constexpr double kUsPerMs = 1000, kMbpsPerGbps = 1000;
    TunerTable table;
    table.SetLink(
        static_cast<uint32_t>(gbps * kMbpsPerGbps),
        options_.sites == 1 ? 0 : static_cast<uint32_t>(options_.round_trip_ms * kUsPerMs));
    return table;
  }

  SlotBudget SlotsOn(const HostMap& hosts, double gbps) const {
    const uint64_t under_way = UnderWay(TableFor(gbps).costs(), &hosts);
    return {.bytes = options_.slot_bytes_max.value_or(DefaultSlotBytes(under_way)),
            .slice_bytes = options_.slice_bytes,
            .under_way = under_way};
  }

  Result<Row> RowOf(int ranks, const std::string& algorithm, uint64_t bytes,
                    const std::string& codec, const Codec& made, const HostMap& hosts,
                    double gbps) const {
    TunerCall call{{.nranks = ranks, .count = bytes / sizeof(float)}};
    call.compressed = codec != "none";
    call.hosts = &hosts;
    call.slots = SlotsOn(hosts, gbps);
    if (call.compressed) call.wire = WireBitsOf(made, call.collective, ranks);
    const TunerTable table = TableFor(gbps);
    const Result<Choice> usual = Choose(call, AlgorithmFilter(), table);
    TunerCall unlimited = call;
    unlimited.slots.bytes = UINT64_MAX;
    Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(algorithm == "auto" ? "" : algorithm);
    if (!filter.ok()) return filter.status();
    const Result<Choice> choice = Choose(algorithm == "auto" ? call : unlimited, *filter, table);
    if (!choice.ok()) return choice.status();
    Row row{ranks, bytes, codec, *choice, usual.ok() && usual->algorithm == choice->algorithm};
    row.slice_bytes = SliceBytesFor(call.collective, choice->algorithm, ranks, &hosts, call.slots);
    row.over_budget = row.slice_bytes == 0;
    if (row.over_budget) row.slice_bytes = LeastSliceBytes(call.collective, call.slots);
    return row;
  }

  Status RunRanks(int ranks, const std::string& algorithm) {
    const int per_host = std::min(options_.per_host, ranks);
    const HostMap hosts = EqualHosts(ranks, per_host, options_.sites);
    for (const std::string& codec : options_.codecs) {
      for (const uint64_t bytes : options_.bytes) {
        Result<std::unique_ptr<Payloads>> payloads =
            Payloads::Make(codec, ranks, bytes / sizeof(float));
        if (!payloads.ok()) return payloads.status();
        for (const double gbps : options_.gbps) {
          Result<Row> row =
              RowOf(ranks, algorithm, bytes, codec, (*payloads)->codec(), hosts, gbps);
          if (!row.ok()) return row.status();
          if (Status status = RunRow(*row, hosts, per_host, gbps, payloads->get()); !status.ok()) {
            return status;
          }
        }
      }
    }
    return Status::Ok();
  }

  // Keeps the last fleet: rows often have the same.
  Result<const Fleet*> FleetOf(const Row& row, size_t side_phases, const HostMap& hosts) {
    const ScheduleRequest request{
        {}, row.choice.algorithm, 1, side_phases, side_phases != 0 && row.choice.side_one_shot};
    const std::string key = fmt::format("{} {} {} {}", row.ranks, Name(request.algorithm),
                                        side_phases, request.side_one_shot);
    if (fleet_ && key == fleet_key_) return &*fleet_;
    fleet_.reset();
    Result<Fleet> fleet = MakeFleet(request, hosts);
    if (!fleet.ok()) return fleet.status();
    fleet_ = *std::move(fleet);
    fleet_key_ = key;
    return &*fleet_;
  }

  Status RunRow(const Row& row, const HostMap& hosts, int per_host, double gbps,
                Payloads* payloads) {
    const CollectiveArgs args{.nranks = row.ranks, .count = row.bytes / sizeof(float)};
    const SlotBudget budget = SlotsOn(hosts, gbps);
    const SlotOptions slots =
        SlotsOf(args.collective, row.choice.algorithm, row.ranks, &hosts, budget, row.slice_bytes);
    const Chunking chunking = CutCall(args, payloads->codec(), 1, row.slice_bytes,
                                      LongLinksFor(slots, &hosts, budget.under_way));
    Machine machine = options_.machine;
    machine.gbps = gbps;
    constexpr double kNsPerMs = 1e6;
    if (options_.sites > 1) machine.site_latency = options_.round_trip_ms * kNsPerMs / 2;
    const double start = Now();
    CallTotals totals;
    if (!options_.estimate_only) {
      Result<const Fleet*> fleet = FleetOf(row, payloads->codec().side_phases().size(), hosts);
      if (!fleet.ok()) return fleet.status();
      Result<CallTotals> ran = Simulation(*fleet, &hosts, slots).Run(chunking, machine, payloads);
      if (!ran.ok()) return ran.status();
      totals = *ran;
    }
    TimeEstimate estimate;  // the formula knows one site
    if (options_.sites == 1) {
      estimate =
          Estimate(row.choice.algorithm, {hosts.hosts(), per_host}, chunking, machine, payloads);
    }
    return Print(row, per_host, gbps, totals, estimate, Now() - start);
  }

  Status Print(const Row& row, int per_host, double gbps, const CallTotals& totals,
               const TimeEstimate& estimate, double wall) {
    PrintOut("{:>6} {:>9} {:>12} {:>18} {:>6} {:>12.1f} {:>12.1f} {:>10.1f} {:>12} {:>8.2f}{}{}\n",
             row.ranks, row.bytes, row.codec, Name(row.choice.algorithm), gbps,
             totals.seconds * 1e6, estimate.seconds() * 1e6, totals.busy_seconds * 1e6,
             totals.most_sent, wall, row.is_choice ? " *" : "", row.over_budget ? " over" : "");
    if (Status s = FlushOutput(); !s.ok() || options_.json.empty()) return s;
    const nlohmann::ordered_json line = {
        {"ranks", row.ranks},
        {"per_host", per_host},
        {"bytes", row.bytes},
        {"codec", row.codec},
        {"algorithm", Name(row.choice.algorithm)},
        {"gbps", gbps},
        {"offload", options_.offload},
        {"sites", options_.sites},
        {"round_trip_ms", options_.sites > 1 ? options_.round_trip_ms : 0},
        {"site_gbps", options_.machine.site_gbps},
        {"site_sent", totals.site_sent},
        {"processors_per_rank", options_.machine.processors_per_rank},
        {"simulated_s", totals.seconds},
        {"link_s", estimate.link},
        {"processor_s", estimate.processor},
        {"chain_s", estimate.chain},
        {"estimate_s", estimate.seconds()},
        {"busy_s", totals.busy_seconds},
        {"payload_bytes", totals.payload_bytes},
        {"slices", totals.slices},
        {"crossing_bytes", totals.crossing_bytes},
        {"crossing_slices", totals.crossing_slices},
        {"host_sent", totals.most_sent},
        {"host_received", totals.most_received},
        {"slice_bytes", row.slice_bytes},
        {"chosen", row.is_choice},
        {"over_budget", row.over_budget}};
    json_ << line.dump() << "\n" << std::flush;
    return json_ ? Status() : SystemErrorErrno(options_.json, errno);
  }

  Options options_;
  std::ofstream json_;
  std::optional<Fleet> fleet_;
  std::string fleet_key_;
};

int Main(int argc, char** argv) {
  Options options;
  Machine& machine = options.machine;
  CLI::App app("Simulates all-reduces of fp32 sums on many ranks. Manual: docs/scaling.md");
  const auto list = [&app](const char* name, auto* value, const char* text) {
    return app.add_option(name, *value, text)->delimiter(',')->capture_default_str();
  };
  list("--ranks", &options.ranks, "numbers of ranks")->check(CLI::Range(2, 65535));
  app.add_option("--per-host", options.per_host, "ranks of a host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  list("--bytes", &options.bytes, "sizes of the vector; K and M are powers of 1024")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--codec", options.codecs, "none or hbi:..., once for each codec");
  list("--gbps", &options.gbps, "rates of a host's link in each direction, in Gbit/s");
  app.add_option("--sites", options.sites, "sites, with as many hosts each")
      ->check(CLI::Range(1, kMostSites))
      ->capture_default_str();
  app.add_option("--round-trip", options.round_trip_ms, "between sites, in milliseconds")
      ->check(CLI::Range(1.0, 2000.0))
      ->capture_default_str();
  app.add_option("--site-gbps", machine.site_gbps,
                 "rate of a site's link; 0: hosts have their own");
  list("--algo", &options.algorithms, "algorithms as in INCCL_ALGO; auto: the library's choice");
  app.add_option("--slot-bytes-max", options.slot_bytes_max, "INCCL_SLOT_BYTES_MAX")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--slice-bytes", options.slice_bytes, "INCCL_SLICE_BYTES")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_flag("--offload", options.offload, "an adapter that moves bytes without the processor");
  app.add_flag("--estimate-only", options.estimate_only, "the formula alone, no simulation");
  app.add_option("--latency", machine.latency, "between hosts, in nanoseconds");
  app.add_option("--message", machine.message, "processor time of a message, in nanoseconds");
  app.add_option("--message-byte", machine.message_byte, "processor time of a byte, likewise");
  app.add_option("--processors-per-rank", machine.processors_per_rank, "0.5: two ranks share one");
  app.add_option("--json", options.json, "a file to append one record per line to");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const Status status = Program(options).Run();
  if (!status.ok()) PrintError("scaling_simulation: {}\n", status.message());
  return status.ok() ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
