// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "perf/bench/communicator.h"
#include "perf/bench/row_runner.h"
#include "perf/support/agree.h"
#include "perf/support/fork_world.h"
#include "perf/support/mpi_world.h"
#include "perf/support/output.h"
#include "perf/support/record.h"
#include "perf/support/table.h"
#include "perf/support/thread_world.h"

namespace inccl::perf {
namespace {

// What does not change during a run.
struct Job {
  Operation operation = Operation::kAllReduce;
  std::string program, command;
  BenchOptions options;
  bool by_mpi = false;
};

std::string VersionText() {
  int version = 0;
  ccl_get_version(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// The value of an option, else of the variable that does the same, else "auto".
std::string OptionOr(const std::string& option, const char* variable) {
  if (!option.empty()) return option;
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0 ? value : "auto";
}

class Run {
 public:
  Run(World& world, const Job& job)
      : world_(world), job_(job), options_(job.options), progress_(world.rank() == 0) {}

  // True if every result was right.
  Result<bool> Execute() {
    if (Status s = AgreeOn(Prepare()); !s.ok()) return s;
    if (Status s = OpenDevice(); !s.ok()) return s;
    Result<Inputs> inputs = Inputs::Gather(world_, pattern_);
    if (!inputs.ok()) return inputs.status();
    Result<Communicator> communicator =
        Communicator::Create(world_, options_, HowToMeet(), gpu_.get());
    if (Status s = AgreeOn(communicator.status()); !s.ok()) return s;
    std::string left_out;
    if (Status s = MakeBaseline(&left_out); !s.ok()) return s;
    ChooseTable();
    if (Status s = PrintHead(left_out); !s.ok()) return s;
    Result<RowRunner> runner = RowRunner::Create(world_, options_, *communicator, *inputs,
                                                 gpu_.get(), baseline_.get(), &progress_);
    if (Status s = AgreeOn(runner.status()); !s.ok()) return s;
    for (uint64_t cycle = 0; cycle < options_.cycles; ++cycle) {
      if (Status s = RunRows(*runner); !s.ok()) return communicator->Explained(s);
    }
    if (!csv()) {
      if (Status s = Print(table_->Footer(rows_)); !s.ok()) return s;
    }
    return std::none_of(rows_.begin(), rows_.end(), [](const Row& row) {
      return row.out_of_place.Failed() || row.in_place.Failed();
    });
  }

  // Whether the error of Execute is the same on all ranks: one of them tells it.
  bool agreed() const { return agreed_; }
  // Whether it is that there is no device.
  bool no_device() const { return no_device_; }

 private:
  Status AgreeOn(const Status& mine) {
    Status common = Agree(world_, mine);
    agreed_ = !common.ok();
    return common;
  }

  Status OpenDevice() {
    if (!options_.cuda) return {};
    Result<std::unique_ptr<Gpu>> gpu = Gpu::Open(world_.rank());
    Status mine = gpu.status();
    if (gpu.ok()) {
      gpu_ = *std::move(gpu);
    } else {
      mine = {mine.code(), "--device cuda: " + mine.message()};
    }
    Status s = AgreeOn(mine);
    no_device_ = !s.ok() && agreed_;
    return s;
  }

  Meeting HowToMeet() const {
    if (job_.options.threads > 0) return Meeting::kInProcess;
    return job_.by_mpi && !options_.init_by_id ? Meeting::kByEnvironment : Meeting::kById;
  }

  // NCCL may be impossible where all else is well: `left_out` says why.
  Status MakeBaseline(std::string* left_out) {
    if (options_.baseline == Baseline::kNone) return {};
    const bool nccl = options_.baseline == Baseline::kNccl;
    Result<std::unique_ptr<BaselineCalls>> made =
        nccl ? NcclBaseline(world_, *gpu_, options_.nccl_library) : MpiBaseline();
    if (made.ok()) {
      baseline_ = *std::move(made);
    } else if (nccl && made.status().code() != Code::kRemoteError) {
      *left_out = made.status().message();
    } else {
      return AgreeOn(made.status());
    }
    return {};
  }

  bool csv() const { return options_.table == TableKind::kCsv; }

  void ChooseTable() {
    TableColumns columns = {.check = options_.checks > 0,
                            .digest = options_.digest,
                            .baseline = baseline_ == nullptr ? "" : baseline_->name(),
                            .codec_width = CodecWidth(),
                            .limit = options_.limit,
                            .tails = options_.tails,
                            .narrow = options_.table == TableKind::kNarrow,
                            .operation = job_.operation};
    if (options_.table == TableKind::kAuto) {
      const std::string header = Table(columns).Header();
      const size_t names = header.find('\n') + 1, end = header.find('\n', names);
      const int have = TerminalColumns();
      columns.narrow = have > 0 && end - names > static_cast<size_t>(have);
    }
    table_.emplace(columns);
  }

  Status Print(const std::string& text) {
    if (world_.rank() != 0) return {};
    progress_.Clear();
    WriteTo(stdout, text);
    return FlushOutput();
  }

  std::string Launcher() const {
    if (job_.by_mpi) return "mpirun";
    return options_.threads > 0 ? "threads" : "fork";
  }

  int CodecWidth() const {
    size_t width = 5;
    for (const std::string& codec : options_.codecs) width = std::max(width, codec.size() + 1);
    return static_cast<int>(width);
  }

  // Everything that can be wrong with the command line and needs no other rank.
  Status Prepare() {
    for (const int root : options_.roots) {
      if (HasRoot(job_.operation) && root >= world_.size()) {
        return InvalidArgument(fmt::format("-r: root {} of {} ranks", root, world_.size()));
      }
    }
    for (const std::string& spec : options_.codecs) {
      Result<BenchCodec> codec = BenchCodec::Create(spec);
      if (!codec.ok()) return codec.status();
      codecs_.push_back(*std::move(codec));
    }
    Result<std::vector<uint64_t>> sizes =
        Sweep(options_.min_bytes, options_.max_bytes, options_.step_bytes, options_.step_factor);
    if (!sizes.ok()) return sizes.status();
    sizes_ = *std::move(sizes);
    if (world_.rank() == 0 && !options_.json.empty()) {
      if (Status s = CheckWritable(options_.json); !s.ok()) return s;
    }
    uint64_t max_count = 1;
    for (const DataType type : options_.types) {
      max_count = std::max(max_count, options_.max_bytes / SizeOf(type));
    }
    Result<std::vector<float>> pattern =
        Inputs::MakePattern(world_, options_.data, max_count, options_.seed);
    if (!pattern.ok()) return pattern.status();
    pattern_ = *std::move(pattern);
    return {};
  }

  Status RunRows(RowRunner& runner) {
    const std::vector<ReduceOp> ops =
        Reduces(job_.operation) ? options_.ops : std::vector<ReduceOp>{ReduceOp::kSum};
    std::vector<int> roots = HasRoot(job_.operation) ? options_.roots : std::vector<int>{0};
    if (roots.front() < 0) {
      roots.clear();
      for (int rank = 0; rank < world_.size(); ++rank) roots.push_back(rank);
    }
    for (const DataType type : options_.types) {
      for (const ReduceOp op : ops) {
        for (const int root : roots) {
          if (Status s = RunSizes(runner, type, op, root); !s.ok()) return s;
        }
      }
    }
    return {};
  }

  Status RunSizes(RowRunner& runner, DataType type, ReduceOp op, int root) {
    for (const uint64_t bytes : sizes_) {
      for (const BenchCodec& codec : codecs_) {
        Result<Row> row = runner.Run({job_.operation, type, op, root, bytes, &codec});
        if (!row.ok()) return row.status();
        row->algorithm = OptionOr(options_.algorithm, "INCCL_ALGO");
        row->transport = OptionOr("", "INCCL_TRANSPORT");
        const Status printed = Print(csv() ? CsvLines(*row) : table_->Format(*row));
        if (!printed.ok()) return printed;
        rows_.push_back(*std::move(row));
        if (Status s = WriteJson(); !s.ok()) return s;  // a run that is stopped keeps its rows
      }
    }
    return {};
  }

  Status PrintHead(const std::string& left_out) {
    struct Place {
      int pid, device;
      std::array<char, 64> host, gpu;
    };
    const Host host = ThisHost();
    Place place{getpid(), gpu_ == nullptr ? -1 : gpu_->number(), {}, {}};
    std::strncpy(place.host.data(), host.name.c_str(), place.host.size() - 1);
    if (gpu_ != nullptr) std::strncpy(place.gpu.data(), gpu_->name().c_str(), 63);
    Result<std::vector<Place>> places = Gather(world_, place);
    if (!places.ok()) return places.status();
    const BenchOptions& o = options_;
    const bool one_host = std::all_of(places->begin(), places->end(), [&](const Place& p) {
      return p.host == places->front().host;
    });
    if (o.limit && !one_host) {
      return InvalidUsage("--limit: the ranks are on several hosts, whose clocks differ");
    }
    std::string text = fmt::format("# inccl {} {}: {} ranks, {}\n", VersionText(), job_.program,
                                   world_.size(), Launcher() == "fork" ? "forked" : Launcher());
    text += fmt::format(
        "# minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
        "validation: {}\n",
        o.min_bytes, o.max_bytes, o.step_factor > 1 ? o.step_factor : o.step_bytes,
        o.step_factor > 1 ? "factor" : "bytes", o.warmup, o.iterations, o.aggregated, o.checks);
    text += fmt::format("# algorithm {} transport {} data {} seed {}",
                        OptionOr(o.algorithm, "INCCL_ALGO"), OptionOr("", "INCCL_TRANSPORT"),
                        o.data, o.seed);
    if (o.link_gbps > 0 || o.link_us > 0) {
      text += fmt::format(" link {} Gbit/s {} us (MPI does not pass it)", o.link_gbps, o.link_us);
    }
    if (gpu_ != nullptr)
      text += fmt::format("\n# device cuda: {} of {}", gpu_->name(), gpu_->count());
    if (!left_out.empty()) text += "\n# NCCL left out: " + left_out;
    text += "\n#\n# Using ranks\n";
    for (size_t rank = 0; rank < places->size(); ++rank) {
      const Place& p = (*places)[rank];
      text += fmt::format(
          "#  Rank {:2} Pid {:6} on {:>10} {}\n", rank, p.pid, p.host.data(),
          p.device < 0 ? host.cpu : fmt::format("device {} {}", p.device, p.gpu.data()));
    }
    return Print(csv() ? CsvHeading() : text + "#\n" + table_->Header());
  }

  Status WriteJson() {
    if (world_.rank() != 0 || options_.json.empty()) return {};
    static constexpr std::array<const char*, 4> kAverages = {"rank 0", "mean", "min", "max"};
    RunHeader header;
    header.version = VersionText();
    header.program = fmt::format("{}_bench", Name(job_.operation));  // whatever it is installed as
    header.command = job_.command;
    header.data = options_.data;
    header.seed = options_.seed;
    header.nranks = world_.size();
    header.launcher = job_.by_mpi ? "mpi" : Launcher();
    header.device = gpu_ == nullptr ? "" : gpu_->name();
    header.devices = gpu_ == nullptr ? 0 : gpu_->count();
    header.iterations = options_.iterations;
    header.warmup = options_.warmup;
    header.aggregated = options_.aggregated;
    header.average = kAverages[static_cast<size_t>(options_.average)];
    header.baseline = baseline_ == nullptr ? "" : baseline_->version();
    header.link_gbps = options_.link_gbps;
    header.link_us = options_.link_us;
    return WriteDocument(options_.json, DocumentOf(header, rows_));
  }

  World& world_;
  const Job& job_;
  const BenchOptions& options_;
  ProgressLine progress_;
  std::optional<Table> table_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<BaselineCalls> baseline_;
  std::vector<BenchCodec> codecs_;
  std::vector<uint64_t> sizes_;
  std::vector<float> pattern_;
  std::vector<Row> rows_;
  bool agreed_ = false, no_device_ = false;
};

int RunRank(World& world, const Job& job) {
  Run run(world, job);
  Result<bool> right = run.Execute();
  if (right.ok()) return *right ? kExitOk : kExitWrong;
  if (!run.agreed() || world.rank() == 0) {
    PrintError("{}: rank {}: {}\n", job.program, world.rank(), right.status().message());
  }
  if (run.no_device()) return kExitNoDevice;
  const bool usage = run.agreed() && right.status().code() == Code::kInvalidArgument;
  return usage ? kExitUsage : kExitFailed;
}

int Usage(const std::string& program, const std::string& text) {
  PrintError("{}: {}\n", program, text);
  return kExitUsage;
}

int RunJob(Operation operation, int argc, char** argv) {
  Job job;
  job.operation = operation;
  job.program = std::filesystem::path(argv[0]).filename().string();
  job.command = CommandLine(argc, argv);
  Result<ParsedOptions> parsed = ParseOptions(operation, job.program, argc, argv);
  if (!parsed.ok()) return Usage(job.program, parsed.status().message());
  if (!parsed->help.empty()) {
    PrintOut("{}", parsed->help);
    return kExitOk;
  }
  if (parsed->version) {
    PrintOut("{} (inccl) {}\n", job.program, VersionText());
    return kExitOk;
  }
  job.options = parsed->options;
  // Ours: the library, which would take it for a mistake, shall not see it.
  if (const char* file = std::getenv("INCCL_NCCL_LIBRARY"); file != nullptr) {
    job.options.nccl_library = file;
    unsetenv("INCCL_NCCL_LIBRARY");
  }
  for (const auto& [name, value] : job.options.environment) {
    if (setenv(name.c_str(), value.c_str(), 1) != 0) return Usage(job.program, "setenv " + name);
  }
  const auto body = [&job](World& world) { return RunRank(world, job); };
#ifdef INCCL_PERF_HAVE_MPI
  if (StartedByMpi()) {
    if (job.options.ranks > 0) return Usage(job.program, "--ranks does not go with mpirun");
    if (job.options.threads > 1) return Usage(job.program, "--threads does not go with mpirun");
    job.options.threads = 0;
    job.by_mpi = true;
    Result<const MpiModule*> mpi = LoadMpi();
    if (!mpi.ok()) {
      PrintError("{}: {}\n", job.program, mpi.status().message());
      return kExitFailed;
    }
    return (*mpi)->run(job.program, &argc, &argv, body);
  }
  constexpr const char* kHowTo = "start it under mpirun, or give --ranks N or --threads N";
#else
  constexpr const char* kHowTo = "built without MPI: give --ranks N or --threads N";
#endif
  if (job.options.threads > 0) return RunThreads(job.program, job.options.threads, body);
  if (job.options.ranks == 0) return Usage(job.program, kHowTo);
  return RunForked(job.program, job.options.ranks, body);
}

}  // namespace

int BenchMain(Operation operation, int argc, char** argv) {
  return RunProgram([&] { return RunJob(operation, argc, argv); });
}

}  // namespace inccl::perf
