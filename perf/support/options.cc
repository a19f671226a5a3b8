// SPDX-License-Identifier: Apache-2.0
#include "perf/support/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <set>

#include "base/types.h"
#include "perf/support/element.h"
#include "perf/support/layout.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kMany = 1000000000;  // more iterations than anyone waits for

// As typed; turned into BenchOptions when all of it is there.
struct RawOptions {
  std::string min_bytes = "32M", max_bytes = "32M", step_bytes = "1M";
  std::string datatype = "float", op = "sum", root = "0";
  int average = 3, blocking = 1, devices = 1;
  std::string baseline, init = "env", buffers = "ordinary", device = "host", table = "auto";
  bool csv = false;
  std::string slice_bytes, transport, simd;
};

// Options of one group in --help.
class Group {
 public:
  Group(CLI::App* app, const char* name) : app_(app), name_(name) {}

  // With a default, which --help shows.
  template <typename T>
  CLI::Option* Add(const char* names, T& value, const char* type, const char* about) {
    return AddPlain(names, value, type, about)->capture_default_str();
  }
  template <typename T>
  CLI::Option* AddPlain(const char* names, T& value, const char* type, const char* about) {
    return app_->add_option(names, value, about)->group(name_)->type_name(type);
  }
  void AddFlag(const char* names, bool& value, const char* about) {
    app_->add_flag(names, value, about)->group(name_);
  }

 private:
  CLI::App* app_;
  const char* name_;
};

// Checks without a description: --help would repeat it beside the type.
template <typename T>
CLI::Validator InRange(T least, T most) {
  return CLI::Range(least, most).description("");
}
CLI::Validator OneOf(const std::set<std::string>& names) {
  return CLI::IsMember(names).description("");
}

void AddSizeOptions(Group group, BenchOptions* options, RawOptions* raw) {
  group.Add("-b,--minbytes", raw->min_bytes, "SIZE", "smallest size (K, M, G: powers of 1024)");
  group.Add("-e,--maxbytes", raw->max_bytes, "SIZE", "largest size");
  group.Add("-i,--stepbytes", raw->step_bytes, "SIZE", "distance of sizes");
  group.Add("-f,--stepfactor", options->step_factor, "N", "factor between sizes; used above 1")
      ->check(InRange(uint64_t{1}, kMany));
  group.Add("-d,--datatype", raw->datatype, "TYPE",
            "float, half, bfloat16, int8, ... (also fp32, bf16, f8e4m3, ...) or all");
  group.Add("-o,--op", raw->op, "OP", "sum, prod, max, min, avg or all");
  group.Add("-r,--root", raw->root, "RANK", "root; -1 or all: all roots");
}

void AddMeasureOptions(Group group, BenchOptions* options, RawOptions* raw) {
  group.Add("-n,--iters", options->iterations, "N", "timed iterations")
      ->check(InRange(uint64_t{1}, kMany));
  group.Add("-w,--warmup_iters", options->warmup, "N", "iterations before, not timed")
      ->check(InRange(uint64_t{0}, kMany));
  group.Add("-m,--agg_iters", options->aggregated, "N", "calls between two time points")
      ->check(InRange(uint64_t{1}, kMany));
  group.Add("-c,--check", options->checks, "N", "checked iterations; 0: no check")
      ->check(InRange(uint64_t{0}, kMany));
  group.Add("-N,--run_cycles", options->cycles, "N", "repetitions of the whole run")
      ->check(InRange(uint64_t{1}, kMany));
  group
      .Add("-a,--average", raw->average, "0..3",
           "time of an iteration: 0 rank 0's, 1 mean, 2 smallest, 3 largest of the ranks'")
      ->check(InRange(0, 3));
  group.Add("-z,--blocking", raw->blocking, "0|1", "accepted; each call is waited for in any case")
      ->check(InRange(0, 1));
  group
      .AddPlain("-T,--timeout", options->timeout_s, "SECONDS",
                "how long a call may make no progress")
      ->check(InRange(1, 86400));
  group
      .AddPlain("--row-seconds", options->row_seconds, "SECONDS",
                "fewer iterations where a row's, in a placement, would take longer; 2 at least")
      ->check(CLI::PositiveNumber.description(""));
}

void AddRankOptions(Group group, BenchOptions* options, RawOptions* raw) {
  group.AddPlain("--ranks", options->ranks, "N", "fork this many ranks (without mpirun)")
      ->check(InRange(1, kMaxRanks));
  group
      .AddPlain("-t,--nthreads,--threads", options->threads, "N",
                "ranks as threads of one process (without mpirun)")
      ->check(InRange(1, kMaxRanks));
  group.Add("-g,--ngpus", raw->devices, "N", "devices of a rank: 1 only");
  group.Add("--init", raw->init, "env|id", "how communicators meet under mpirun")
      ->check(OneOf({"env", "id"}));
  group.Add("--device", raw->device, "host|cuda", "where the buffers are")
      ->check(OneOf({"host", "cuda"}));
  group
      .Add("--buffers", raw->buffers, "ordinary|mem_alloc",
           "ordinary memory or that of ccl_mem_alloc")
      ->check(OneOf({"ordinary", "mem_alloc"}));
}

void AddLibraryOptions(Group group, BenchOptions* options, RawOptions* raw) {
  group.AddPlain("--codec", options->codecs, "SPEC", "none, hbi:bits=6, ...; repeatable [none]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  group
      .AddPlain("--vectors", options->vectors, "N",
                "all-reduces of N vectors that make up the size (ccl_allreduce_fused)")
      ->check(InRange(1, 1 << 20));
  group.AddPlain("--algo", options->algorithm, "NAME", "algorithm; else the library chooses");
  group.AddPlain("--channels", options->channels, "N", "lanes per peer")->check(InRange(1, 32));
  group.AddFlag("--reproducible", options->reproducible, "float sums in rank order");
  group.AddPlain("--slice-bytes", raw->slice_bytes, "SIZE", "pipeline unit (INCCL_SLICE_BYTES)");
  group.AddPlain("--transport", raw->transport, "NAME", "shm, ... (INCCL_TRANSPORT)");
  group.AddPlain("--simd", raw->simd, "NAME", "scalar, avx2, ... (INCCL_TEST_SIMD)");
  group.AddPlain("--link-gbps", options->link_gbps, "X", "emulated rate of a rank's link, Gbit/s")
      ->check(CLI::PositiveNumber.description(""));
  group.AddPlain("--link-us", options->link_us, "X", "emulated latency, microseconds")
      ->check(CLI::NonNegativeNumber.description(""));
}

void AddDataOptions(Group group, BenchOptions* options) {
  group.Add("--data", options->data, "SPEC",
            "normal, grad, gradients:early|middle|late or FILE.npy");
  group.Add("--seed", options->seed, "N", "seed of generated data");
}

void AddOutputOptions(Group group, BenchOptions* options, RawOptions* raw) {
  group
      .Add("--table", raw->table, "auto|wide|narrow",
           "narrow: 120 columns; auto: narrow on a terminal that is too narrow for wide")
      ->check(OneOf({"auto", "wide", "narrow"}));
  group.AddFlag("--csv", raw->csv, "comma-separated values instead of a table");
  group.AddFlag("--digest", options->digest, "column with a digest of the result");
  group
      .AddPlain("--baseline", raw->baseline, "mpi|nccl",
                "the same call of theirs, interleaved: columns beside ours")
      ->check(OneOf({"mpi", "nccl"}));
  group.AddFlag("--limit", options->limit,
                "the streaming limit (of a device: its copy), interleaved: columns beside ours");
  group.AddFlag("--tails", options->tails, "columns with p99 and maximum of every side");
  group.AddPlain("-J,--output_file,--json", options->json, "FILE",
                 "JSON file with one record per row and placement");
}

void AddOptions(CLI::App* app, ParsedOptions* parsed, RawOptions* raw) {
  BenchOptions* const options = &parsed->options;
  AddSizeOptions({app, "What is called"}, options, raw);
  AddMeasureOptions({app, "How it is measured"}, options, raw);
  AddRankOptions({app, "Ranks and memory"}, options, raw);
  AddLibraryOptions({app, "The library"}, options, raw);
  AddDataOptions({app, "Data"}, options);
  AddOutputOptions({app, "Output"}, options, raw);
  app->set_help_flag("-h,--help", "print this text")->group("Help");
  Group(app, "Help").AddFlag("--version", parsed->version, "print the version");
}

template <typename T>
std::string Names(int count) {
  std::string names;
  for (int i = 0; i < count; ++i)
    names += fmt::format("{}{}", i == 0 ? "" : ", ", Name(static_cast<T>(i)));
  return names;
}

Result<std::vector<DataType>> ParseTypes(const std::string& text) {
  std::vector<DataType> types;
  if (text == "all") {
    for (int i = 0; i < kDataTypes; ++i) types.push_back(static_cast<DataType>(i));
    return types;
  }
  const std::optional<DataType> type = ParseDataType(text);
  if (!type)
    return InvalidArgument(
        fmt::format("-d: unknown type '{}'; there are {}, all", text, Names<DataType>(kDataTypes)));
  types.push_back(*type);
  return types;
}

Result<std::vector<ReduceOp>> ParseOps(const std::string& text) {
  std::vector<ReduceOp> ops;
  if (text == "all") {
    for (int i = 0; i < kReduceOps; ++i) ops.push_back(static_cast<ReduceOp>(i));
    return ops;
  }
  const std::optional<ReduceOp> op = ParseReduceOp(text);
  if (!op)
    return InvalidArgument(fmt::format("-o: unknown operation '{}'; there are {}, all", text,
                                       Names<ReduceOp>(kReduceOps)));
  ops.push_back(*op);
  return ops;
}

Result<int> ParseRoot(const std::string& text) {
  if (text == "all") return -1;
  int root = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, root);
  if (parsed.ec != std::errc() || parsed.ptr != end || root < -1) {
    return InvalidArgument(fmt::format("-r: '{}' is not a rank, -1 or all", text));
  }
  return root;
}

struct SizeOption {
  const char* name;
  const std::string& text;
  uint64_t* value;
};

Status ParseSizes(const RawOptions& raw, BenchOptions* options) {
  for (const SizeOption& size : {SizeOption{"-b", raw.min_bytes, &options->min_bytes},
                                 SizeOption{"-e", raw.max_bytes, &options->max_bytes},
                                 SizeOption{"-i", raw.step_bytes, &options->step_bytes}}) {
    Result<uint64_t> value = ParseSize(size.text);
    if (!value.ok()) {
      return InvalidArgument(fmt::format("{}: {}", size.name, value.status().message()));
    }
    *size.value = *value;
  }
  return Sweep(options->min_bytes, options->max_bytes, options->step_bytes, options->step_factor)
      .status();
}

Status CheckCombinations(Operation operation, const BenchOptions& options) {
  if (options.ranks > 0 && options.threads > 1) {
    return InvalidArgument("--ranks and --threads: ranks are processes or threads");
  }
  if (options.baseline == Baseline::kMpi && (options.ranks > 0 || options.threads > 1)) {
    return InvalidArgument("--baseline mpi needs mpirun: it does not go with --ranks or --threads");
  }
  if (options.baseline == Baseline::kMpi && options.cuda) {
    return InvalidArgument("--baseline mpi: of buffers of the host only, not with --device cuda");
  }
  if (options.baseline == Baseline::kNccl && !options.cuda) {
    return InvalidArgument("--baseline nccl needs --device cuda: NCCL has no others");
  }
  if (options.vectors > 1 && operation != Operation::kAllReduce) {
    return InvalidArgument(
        fmt::format("--vectors {}: there is no {} of several", options.vectors, Name(operation)));
  }
  for (const std::string& codec : options.codecs) {
    if (codec != "none" && !HasCompressed(operation)) {
      return InvalidArgument(
          fmt::format("--codec {}: there is no compressed {}", codec, Name(operation)));
    }
  }
  return {};
}

// ccl_comm_init_all takes no options but those of the environment.
void SetForThreads(BenchOptions* options) {
  std::map<std::string, std::string>& environment = options->environment;
  if (!options->algorithm.empty()) environment["INCCL_ALGO"] = options->algorithm;
  if (options->channels > 0) environment["INCCL_CHANNELS"] = fmt::format("{}", options->channels);
  if (options->reproducible) environment["INCCL_REPRODUCIBLE"] = "1";
  if (options->timeout_s > 0) {
    environment["INCCL_OP_TIMEOUT_MS"] = fmt::format("{}", options->timeout_s * 1000);
  }
}

TableKind TableKindOf(const RawOptions& raw) {
  if (raw.csv) return TableKind::kCsv;
  if (raw.table == "wide") return TableKind::kWide;
  return raw.table == "narrow" ? TableKind::kNarrow : TableKind::kAuto;
}

Status Convert(Operation operation, const RawOptions& raw, BenchOptions* options) {
  if (raw.devices != 1) {
    return InvalidArgument(
        fmt::format("-g {}: a rank has one device; start {} ranks with mpirun, --ranks or -t",
                    raw.devices, std::max(raw.devices, 1)));
  }
  options->table = TableKindOf(raw);
  if (Status s = ParseSizes(raw, options); !s.ok()) return s;
  Result<std::vector<DataType>> types = ParseTypes(raw.datatype);
  if (!types.ok()) return types.status();
  options->types = *std::move(types);
  Result<std::vector<ReduceOp>> ops = ParseOps(raw.op);
  if (!ops.ok()) return ops.status();
  options->ops = *std::move(ops);
  Result<int> root = ParseRoot(raw.root);
  if (!root.ok()) return root.status();
  options->roots = {*root};
  options->average = static_cast<Average>(raw.average);
  options->baseline = raw.baseline == "mpi"    ? Baseline::kMpi
                      : raw.baseline == "nccl" ? Baseline::kNccl
                                               : Baseline::kNone;
  options->cuda = raw.device == "cuda";
  options->mem_alloc = raw.buffers == "mem_alloc";
  options->init_by_id = raw.init == "id";
  if (!raw.slice_bytes.empty()) {
    Result<uint64_t> bytes = ParseSize(raw.slice_bytes);
    if (!bytes.ok()) return InvalidArgument("--slice-bytes: " + bytes.status().message());
    options->environment["INCCL_SLICE_BYTES"] = fmt::format("{}", *bytes);
  }
  if (!raw.transport.empty()) options->environment["INCCL_TRANSPORT"] = raw.transport;
  if (!raw.simd.empty()) options->environment["INCCL_TEST_SIMD"] = raw.simd;
  if (options->link_gbps > 0) {
    options->environment["INCCL_TEST_LINK_GBPS"] = fmt::format("{}", options->link_gbps);
  }
  if (options->link_us > 0) {
    options->environment["INCCL_TEST_LINK_US"] = fmt::format("{}", options->link_us);
  }
  if (options->ranks > 0 && options->threads == 1) options->threads = 0;  // each process has one
  if (options->threads > 0) SetForThreads(options);
  return CheckCombinations(operation, *options);
}

}  // namespace

Result<ParsedOptions> ParseOptions(Operation operation, const std::string& program, int argc,
                                   const char* const* argv) {
  ParsedOptions parsed;
  RawOptions raw;
  CLI::App app(fmt::format("Times and checks {} as nccl-tests do. Manual: docs/perf-tools.md",
                           Name(operation)),
               program);
  app.get_formatter()->column_width(34);
  AddOptions(&app, &parsed, &raw);
  // The parser throws; nothing leaves this function but values.
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    // The option with all its names: "-n 0" is not called an error of --iters alone.
    const std::string text = error.what();
    const size_t end = text.find(':');
    const CLI::Option* const option =
        end == std::string::npos ? nullptr : app.get_option_no_throw(text.substr(0, end));
    return InvalidArgument(option == nullptr ? text
                                             : option->get_name(false, true) + text.substr(end));
  }
  if (parsed.version) return parsed;
  if (Status s = Convert(operation, raw, &parsed.options); !s.ok()) return s;
  return parsed;
}

}  // namespace inccl::perf
