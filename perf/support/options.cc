// SPDX-License-Identifier: Apache-2.0
#include "perf/support/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "perf/support/element.h"
#include "perf/support/layout.h"

namespace inccl::perf {
namespace {

constexpr int kMaxRanks = 64;
constexpr uint64_t kMany = 1000000000;  // more iterations than anyone waits for

// As typed; turned into BenchOptions when all of it is there.
struct RawOptions {
  std::string min_bytes = "32M", max_bytes = "32M", step_bytes = "1M";
  std::string datatype = "float", op = "sum", root = "0";
  int average = 3, blocking = 1;
  std::string baseline, init = "env", buffers = "ordinary", device = "host";
  std::string slice_bytes, transport, simd;
};

void AddMeasureOptions(CLI::App* app, BenchOptions* options, RawOptions* raw) {
  app->add_option("-b,--minbytes", raw->min_bytes, "smallest size (K, M, G: powers of 1024)");
  app->add_option("-e,--maxbytes", raw->max_bytes, "largest size");
  app->add_option("-i,--stepbytes", raw->step_bytes, "distance of sizes");
  app->add_option("-f,--stepfactor", options->step_factor, "factor between sizes, above 1: used")
      ->check(CLI::Range(uint64_t{1}, kMany));
  app->add_option("-n,--iters", options->iterations, "timed iterations")
      ->check(CLI::Range(uint64_t{1}, kMany));
  app->add_option("-w,--warmup_iters", options->warmup, "iterations before, not timed")
      ->check(CLI::Range(uint64_t{0}, kMany));
  app->add_option("-m,--agg_iters", options->aggregated, "calls between two time points")
      ->check(CLI::Range(uint64_t{1}, kMany));
  app->add_option("-c,--check", options->checks, "checked iterations; 0: no check")
      ->check(CLI::Range(uint64_t{0}, kMany));
  app->add_option("-N,--run_cycles", options->cycles, "repetitions of the whole run")
      ->check(CLI::Range(uint64_t{1}, kMany));
  app->add_option("-d,--datatype", raw->datatype, "int8, ..., float, bfloat16, ... or all");
  app->add_option("-o,--op", raw->op, "sum, prod, max, min, avg or all");
  app->add_option("-r,--root", raw->root, "root; -1 or all: all roots");
  app->add_option("-a,--average", raw->average,
                  "time of an iteration: 0 rank 0's, 1 mean, 2 smallest, 3 largest of the ranks'")
      ->check(CLI::Range(0, 3));
  app->add_option("-z,--blocking", raw->blocking,
                  "0 or 1: calls are waited for one by one in any case")
      ->check(CLI::Range(0, 1));
  app->add_option("-T,--timeout", options->timeout_s, "seconds a call may make no progress")
      ->check(CLI::Range(1, 86400));
}

void AddOurOptions(CLI::App* app, BenchOptions* options, RawOptions* raw) {
  app->add_option("--ranks", options->ranks, "fork this many ranks (without mpirun)")
      ->check(CLI::Range(1, kMaxRanks));
  app->add_option("--threads", options->threads, "ranks as threads of this process")
      ->check(CLI::Range(1, kMaxRanks));
  app->add_option("--device", raw->device, "where the buffers are: host, or cuda (GPUs' memory)")
      ->check(CLI::IsMember({"host", "cuda"}));
  app->add_option("--codec", options->codecs, "codec, \"none\" or \"hbi:bits=6\"; repeatable")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--algo", options->algorithm, "algorithm; default: the library chooses");
  app->add_option("--channels", options->channels, "lanes per peer")->check(CLI::Range(1, 32));
  app->add_flag("--reproducible", options->reproducible, "float sums in rank order");
  app->add_option("--slice-bytes", raw->slice_bytes, "pipeline unit (INCCL_SLICE_BYTES)");
  app->add_option("--transport", raw->transport, "shm, ... (INCCL_TRANSPORT)");
  app->add_option("--simd", raw->simd, "scalar, avx2, ... (INCCL_SIMD)");
  app->add_option("--link-gbps", options->link_gbps, "emulated rate of a rank's link, Gbit/s")
      ->check(CLI::PositiveNumber);
  app->add_option("--link-us", options->link_us, "emulated latency, microseconds")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--data", options->data,
                  "normal, laplace, t3, grad, gradients:early|middle|late or FILE.npy");
  app->add_option("--seed", options->seed, "of generated data");
  app->add_flag("--digest", options->digest, "column with a digest of the result");
  app->add_option("--baseline", raw->baseline, "mpi, nccl: the same call of theirs, interleaved")
      ->check(CLI::IsMember({"mpi", "nccl"}));
  app->add_option("--buffers", raw->buffers, "ordinary memory or that of ccl_mem_alloc")
      ->check(CLI::IsMember({"ordinary", "mem_alloc"}));
  app->add_flag("--limit", options->limit,
                "the streaming limit (of a device: its copy), interleaved: columns beside it");
  app->add_flag("--tails", options->tails, "columns with p99 and maximum of every side");
  app->add_option("--init", raw->init, "env or id: how communicators meet under mpirun")
      ->check(CLI::IsMember({"env", "id"}));
  app->add_option("--row-seconds", options->row_seconds,
                  "fewer iterations where a row's, in a placement, would take longer; 2 at least")
      ->check(CLI::PositiveNumber);
  app->add_option("--json", options->json, "file for one record per row and placement");
}

Result<std::vector<DataType>> ParseTypes(const std::string& text) {
  std::vector<DataType> types;
  if (text == "all") {
    for (int i = 0; i < kDataTypes; ++i) types.push_back(static_cast<DataType>(i));
    return types;
  }
  const std::optional<DataType> type = ParseDataType(text);
  if (!type) return InvalidArgument(fmt::format("-d: unknown type '{}'", text));
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
  if (!op) return InvalidArgument(fmt::format("-o: unknown operation '{}'", text));
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
  if (options.ranks > 0 && options.threads > 0) {
    return InvalidArgument("--ranks and --threads: ranks are processes or threads");
  }
  if (options.baseline == Baseline::kMpi && (options.ranks > 0 || options.threads > 0)) {
    return InvalidArgument("--baseline mpi needs mpirun: it does not go with --ranks or --threads");
  }
  if (options.baseline == Baseline::kMpi && options.cuda) {
    return InvalidArgument("--baseline mpi: of buffers of the host only, not with --device cuda");
  }
  if (options.baseline == Baseline::kNccl && !options.cuda) {
    return InvalidArgument("--baseline nccl needs --device cuda: NCCL has no others");
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

Status Convert(Operation operation, const RawOptions& raw, BenchOptions* options) {
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
  if (!raw.simd.empty()) options->environment["INCCL_SIMD"] = raw.simd;
  if (options->link_gbps > 0) {
    options->environment["INCCL_LINK_GBPS"] = fmt::format("{}", options->link_gbps);
  }
  if (options->link_us > 0) {
    options->environment["INCCL_LINK_US"] = fmt::format("{}", options->link_us);
  }
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
  AddMeasureOptions(&app, &parsed.options, &raw);
  AddOurOptions(&app, &parsed.options, &raw);
  // The parser throws; nothing leaves this function but values.
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(error.what());
  }
  if (Status s = Convert(operation, raw, &parsed.options); !s.ok()) return s;
  return parsed;
}

}  // namespace inccl::perf
