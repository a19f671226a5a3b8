// SPDX-License-Identifier: Apache-2.0
//
// inccl-accuracy (docs/inccl-accuracy.md): what compression costs in accuracy. For each data set
// and number of ranks it takes the sum over the ranks with the library's compressed all-reduce (the
// ranks are threads of this process and use the public C API), with a bf16 ring and with an MXFP8
// ring, and compares each with the sum in double precision. Exit status 0 if everything ran and all
// ranks agreed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "inccl/ccl.h"
#include "perf/support/datasets.h"
#include "tools/reference_rings.h"

namespace inccl::tools {
namespace {

using Vectors = std::vector<std::vector<float>>;

struct Options {
  std::vector<std::string> data = {
      "normal", "laplace", "t3", "grad", "gradients:early", "gradients:middle", "gradients:late"};
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> bits = {"8", "6", "5", "4"};
  std::vector<std::string> references = {"direct"};
  std::vector<std::string> codecs;  // further specs, as given
  std::string algo;                 // "": the reference's own
  uint64_t count = 0;               // 0: a file's own length, 2^17 for the generators
  uint64_t repeats = 4;
  uint64_t seed = 0;
  bool csv = false;
};

// A codec and the algorithm that carries it.
struct Way {
  std::string spec;
  std::string algo;
};

struct Row {
  double bits = 0;  // per element and phase, averaged over ranks and repeats
  double vnmse = 0;
  double max_error = 0;
  double cosine = 0;
};

Status FromResult(ccl_result_t result, ccl_comm_t comm, const std::string& what) {
  if (result == CCL_SUCCESS) return {};
  return Status(
      static_cast<Code>(result),
      fmt::format("{}: {}: {}", what, ccl_get_error_string(result), ccl_get_last_error(comm)));
}

// One communicator whose ranks are threads of this process.
class Group {
 public:
  static Result<std::unique_ptr<Group>> Create(int nranks, const std::string& algo) {
    if (setenv("INCCL_ALGO", algo.c_str(), 1) != 0) return SystemErrorErrno("INCCL_ALGO", errno);
    auto group = std::make_unique<Group>();
    std::vector<ccl_comm_t> comms(static_cast<size_t>(nranks), nullptr);
    const ccl_result_t result = ccl_comm_init_all(comms.data(), nranks, nullptr);
    if (Status s = FromResult(result, nullptr, "ccl_comm_init_all"); !s.ok()) return s;
    group->comms_ = std::move(comms);
    return group;
  }
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (ccl_comm_t comm : comms_) ccl_comm_destroy(comm);
  }

  // The compressed sum of `inputs`, one per rank, as every rank received it. Adds the bits per
  // element that travelled, averaged over the ranks, to *bits.
  Result<std::vector<float>> Sum(const std::string& spec, const Vectors& inputs, uint64_t step,
                                 double* bits) {
    ccl_codec_t codec = nullptr;
    if (Status s = FromResult(ccl_codec_create(&codec, spec.c_str()), nullptr, spec); !s.ok()) {
      return s;
    }
    const size_t n = comms_.size();
    Vectors outputs(n, std::vector<float>(inputs[0].size()));
    std::vector<ccl_compression_stats_t> stats(n, CCL_COMPRESSION_STATS_INIT);
    std::vector<Status> statuses(n);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        ccl_compression_t how = CCL_COMPRESSION_INIT;
        how.codec = codec;
        how.step = step;
        how.stats = &stats[r];
        const ccl_result_t result =
            ccl_allreduce_compressed(inputs[r].data(), outputs[r].data(), inputs[r].size(),
                                     CCL_FLOAT32, CCL_SUM, &how, comms_[r], nullptr);
        statuses[r] = FromResult(result, comms_[r], fmt::format("{}, rank {}", spec, r));
      });
    }
    for (std::thread& thread : threads) thread.join();
    ccl_codec_destroy(codec);
    for (const Status& status : statuses) {
      if (!status.ok()) return status;
    }
    for (size_t r = 0; r < n; ++r) {
      if (std::memcmp(outputs[0].data(), outputs[r].data(), 4 * outputs[0].size()) != 0) {
        return InternalError(fmt::format("{}: ranks 0 and {} have different results", spec, r));
      }
      if (stats[r].compressed == 0) {
        return InternalError(fmt::format("{}: the call ran uncompressed on rank {}", spec, r));
      }
      *bits += stats[r].bits / static_cast<double>(n);
    }
    return std::move(outputs[0]);
  }

 private:
  std::vector<ccl_comm_t> comms_;
};

std::vector<double> ExactSum(const Vectors& inputs) {
  std::vector<double> sum(inputs[0].size(), 0.0);
  for (const std::vector<float>& input : inputs) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{input[i]};
  }
  return sum;
}

// Adds the errors of one result to a row that averages `repeats` of them.
void Account(const std::vector<float>& result, const std::vector<double>& exact, uint64_t repeats,
             Row* row) {
  double error = 0, power = 0, product = 0, result_power = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = double{result[i]} - exact[i];
    error += difference * difference;
    power += exact[i] * exact[i];
    result_power += double{result[i]} * double{result[i]};
    product += double{result[i]} * exact[i];
    row->max_error = std::fmax(row->max_error, std::fabs(difference));
  }
  row->vnmse += error / power / static_cast<double>(repeats);
  row->cosine += product / std::sqrt(power * result_power) / static_cast<double>(repeats);
}

void PrintHeader(const Options& options) {
  if (options.csv) {
    fmt::print("data,nranks,count,codec,algo,bits,vnmse,max_err,cosine\n");
    return;
  }
  fmt::print(
      "# vNMSE = |result - sum|^2 / |sum|^2 and cosine: means of {} runs; max error: their "
      "largest, absolute\n# bits: per element and phase (a phase: reduce-scatter or "
      "all-gather)\n",
      options.repeats);
  fmt::print("{:<18}{:>6}{:>9}  {:<24}{:<10}{:>7}{:>12}{:>12}{:>13}\n", "data", "ranks", "count",
             "codec", "algo", "bits", "vNMSE", "max error", "cosine");
}

void Print(const Options& options, const std::string& data, size_t nranks, size_t count,
           const Way& way, const Row& row) {
  if (options.csv) {
    const std::string spec =
        way.spec.find(',') == std::string::npos ? way.spec : "\"" + way.spec + "\"";
    fmt::print("{},{},{},{},{},{:.4f},{:.6g},{:.6g},{:.10f}\n", data, nranks, count, spec, way.algo,
               row.bits, row.vnmse, row.max_error, row.cosine);
  } else {
    fmt::print("{:<18}{:>6}{:>9}  {:<24}{:<10}{:>7.3f}{:>12.3g}{:>12.3g}{:>13.8f}\n", data, nranks,
               count, way.spec, way.algo, row.bits, row.vnmse, row.max_error, row.cosine);
  }
  std::fflush(stdout);
}

std::vector<Way> Ways(const Options& options) {
  std::vector<Way> ways;
  for (const std::string& reference : options.references) {
    for (const std::string& bits : options.bits) {
      const std::string suffix = reference == "direct" ? "" : ",ref=" + reference;
      ways.push_back({fmt::format("hbi:bits={}{}", bits, suffix),
                      options.algo.empty() ? reference : options.algo});
    }
  }
  for (const std::string& spec : options.codecs) {
    ways.push_back({spec, options.algo.empty() ? "direct" : options.algo});
  }
  return ways;
}

Result<Vectors> Inputs(const std::string& data, int nranks, uint64_t count, uint64_t seed) {
  Vectors inputs;
  for (int r = 0; r < nranks; ++r) {
    Result<std::vector<float>> input = perf::MakeData(data, r, nranks, count, seed);
    if (!input.ok()) return input.status();
    inputs.push_back(*std::move(input));
  }
  return inputs;
}

// All rows of one data set at one number of ranks.
Status RunCase(const Options& options, const std::string& data, int nranks, uint64_t count) {
  std::vector<Vectors> inputs;
  std::vector<std::vector<double>> exact;
  for (uint64_t repeat = 0; repeat < options.repeats; ++repeat) {
    Result<Vectors> made = Inputs(data, nranks, count, options.seed + repeat);
    if (!made.ok()) return made.status();
    exact.push_back(ExactSum(*made));
    inputs.push_back(*std::move(made));
  }
  const auto n = static_cast<size_t>(nranks);
  Row bf16{.bits = kBf16Bits}, mxfp8{.bits = kMxfp8Bits};
  for (size_t i = 0; i < inputs.size(); ++i) {
    Account(Bf16Ring(inputs[i]), exact[i], options.repeats, &bf16);
    Account(Mxfp8Ring(inputs[i]), exact[i], options.repeats, &mxfp8);
  }
  Print(options, data, n, count, {"bf16 ring", "-"}, bf16);
  Print(options, data, n, count, {"MXFP8 ring", "-"}, mxfp8);
  for (const Way& way : Ways(options)) {
    Result<std::unique_ptr<Group>> group = Group::Create(nranks, way.algo);
    if (!group.ok()) return group.status();
    Row row;
    for (size_t i = 0; i < inputs.size(); ++i) {
      double bits = 0;
      Result<std::vector<float>> sum = (*group)->Sum(way.spec, inputs[i], i + 1, &bits);
      if (!sum.ok()) return sum.status();
      row.bits += bits / static_cast<double>(options.repeats);
      Account(*sum, exact[i], options.repeats, &row);
    }
    Print(options, data, n, count, way, row);
  }
  return {};
}

Status Run(const Options& options) {
  PrintHeader(options);
  for (const std::string& data : options.data) {
    Result<uint64_t> natural = perf::NaturalCount(data);
    if (!natural.ok()) return natural.status();
    const uint64_t own = *natural != 0 ? *natural : uint64_t{1} << 17;
    const uint64_t count = options.count != 0 ? options.count : own;
    for (const int nranks : options.ranks) {
      if (Status s = RunCase(options, data, nranks, count); !s.ok()) return s;
    }
  }
  return {};
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  inccl::tools::Options options;
  CLI::App app(
      "Accuracy of compressed sums beside bf16 and MXFP8 rings, against the exact sum. "
      "Manual: docs/inccl-accuracy.md");
  app.add_option("--data", options.data,
                 "normal, laplace, t3, grad, gradients:early|middle|late, FILE.npy")
      ->delimiter(',');
  app.add_option("--ranks", options.ranks, "numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  app.add_option("--bits", options.bits, "bits per element of hbi; none: --bits ''")
      ->delimiter(',');
  app.add_option("--ref", options.references, "reference algorithms of hbi: direct, ring")
      ->delimiter(',')
      ->check(CLI::IsMember({"direct", "ring"}));
  app.add_option("--codec", options.codecs, "a further codec, e.g. hbi:k=15,k2=15 (repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--algo", options.algo, "algorithm that carries it (default: the reference)");
  app.add_option("--count", options.count, "elements (default: a file's own, else 131072)");
  app.add_option("--repeats", options.repeats, "runs with other seeds and steps (default 4)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed, "seed of the first run's data (default 0)");
  app.add_flag("--csv", options.csv, "comma-separated values instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (inccl::Status s = inccl::tools::Run(options); !s.ok()) {
    fmt::print(stderr, "inccl-accuracy: {}: {}\n", inccl::CodeName(s.code()), s.message());
    return 1;
  }
  return 0;
}
