// SPDX-License-Identifier: Apache-2.0
//
// inccl-accuracy (docs/tools.md): what compression costs in accuracy. For each data set
// and number of ranks it takes the sum over the ranks with codecs of the library (the ranks are
// threads of this process and use the public C API), with a bf16 ring and with an MXFP8 ring, and
// compares each with the sum in double precision; or it holds the library to what docs/accuracy.md
// promises.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "perf/accuracy/acceptance.h"
#include "perf/accuracy/checklist.h"
#include "perf/accuracy/inputs.h"
#include "perf/accuracy/measure.h"
#include "perf/accuracy/plot.h"
#include "perf/accuracy/report.h"
#include "perf/accuracy/steps.h"
#include "perf/accuracy/way.h"
#include "perf/support/output.h"

namespace inccl::tools {
namespace {

constexpr int kRan = 0, kFailed = 1, kCommandLine = 2, kSkipped = 3;  // exit status

struct Options {
  std::vector<std::string> data;  // none: all seven, of acceptance the recorded gradients
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> bits = {"8", "6", "5", "4"};
  std::vector<std::string> references = {"direct"};
  std::vector<std::string> codecs;    // further specs, as given
  std::vector<std::string> reducers;  // specs
  std::string algo;                   // "": the codec's usual one
  uint64_t count = 0;                 // 0: a file's own length, 2^17 for the generators
  uint64_t repeats = 4;
  uint64_t steps = 0;
  bool residual = false;
  uint64_t seed = 0;
  float scale = 1;          // of the inputs
  std::string layers_file;  // "": no layers
  std::vector<Layer> layers;
  bool every = false;
  bool csv = false;
  std::string plot;
  bool acceptance = false;
};

// Beside hbi with `bits`: a specification and the algorithm that carries it, "" for the usual one.
// {bits} stands for each of the bits.
struct Known {
  const char* spec;
  const char* algo;
};
constexpr Known kEvery[] = {
    {"hbi:bits={bits},ref=ring", ""},
    {"hbi:bits={bits},rht=1", ""},
    {"hbi:bits={bits},m=4", ""},
    {"bf16", ""},
    {"fp16", ""},
    {"fp8:format=e4m3", ""},
    {"fp8:format=e5m2", ""},
    {"mxfp8", ""},
    {"mxfp8", "direct"},
    {"lossless", ""},
    {"onebit", ""},
    {"dither:bits=4", ""},
    {"dither:bits=4,levels=pow2", ""},
    {"dither:bits=2,norm=l2,sparse=1", ""},
    {"qsgd:q=4", ""},
    {"qsgd:q=5", ""},
    {"qsgd:q=6", ""},
    {"qsgd:q=8", ""},
    {"qsgd_ms:q=3+7", ""},
    {"qsgd_ms:q=4+8", ""},
};

const std::vector<std::string>& RecordedGradients() {
  static const std::vector<std::string> names = {"gradients:early", "gradients:middle",
                                                 "gradients:late"};
  return names;
}

void AddWays(const std::string& spec, const std::string& algo, const Options& options,
             std::vector<Way>* ways) {
  const std::string placeholder = "{bits}";
  const size_t at = spec.find(placeholder);
  const std::vector<std::string> once = {""};
  for (const std::string& bits : at == std::string::npos ? once : options.bits) {
    std::string filled = spec;
    if (at != std::string::npos) filled.replace(at, placeholder.size(), bits);
    ways->push_back(CodecWay(filled, options.algo.empty() ? algo : options.algo));
  }
}

std::vector<Way> Ways(const Options& options) {
  std::vector<Way> ways = {Bf16Reference(), Mxfp8Reference()};
  for (const std::string& reference : options.references) {
    const std::string suffix = reference == "direct" ? "" : ",ref=" + reference;
    AddWays("hbi:bits={bits}" + suffix, "", options, &ways);
  }
  if (options.every) {
    for (const Known& known : kEvery) AddWays(known.spec, known.algo, options, &ways);
  }
  for (const std::string& spec : options.codecs) AddWays(spec, "", options, &ways);
  for (const std::string& spec : options.reducers) {
    ways.push_back(ReducerWay(spec, options.layers));
  }
  return ways;
}

// One row: means over samples that differ in seed, and the bias of the first.
Result<Row> Measure(const Options& options, const std::vector<Vectors>& samples,
                    const std::vector<std::vector<double>>& exact, const Way& way) {
  Row row;
  row.nranks = static_cast<int>(samples[0].size());
  row.count = exact[0].size();
  row.way = way;
  Result<std::unique_ptr<Ranks>> ranks = Ranks::Create(way, row.nranks);
  if (!ranks.ok()) return ranks.status();
  const auto number = static_cast<double>(samples.size());
  std::vector<double> layers(options.layers.size(), 0.0);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (Status s = (*ranks)->Reset(); !s.ok()) return s;
    Result<Sum> sum = (*ranks)->Take(samples[i], i + 1);
    if (!sum.ok()) return sum.status();
    const Errors errors = ErrorsOf(sum->result, exact[i]);
    row.bits += sum->bits / number;
    row.vnmse += errors.vnmse / number;
    row.cosine += errors.cosine / number;
    if (!(errors.max_error <= row.max_error)) row.max_error = errors.max_error;
    const std::vector<double> parts = LayerErrors(sum->result, exact[i], options.layers);
    for (size_t l = 0; l < parts.size(); ++l) layers[l] += parts[l] / number;
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l] <= row.layer_vnmse) continue;
    row.layer_vnmse = layers[l];
    row.layer = options.layers[l].name;
  }
  if (options.steps != 0) {
    Result<StepErrors> errors = OverSteps(way, samples[0], options.steps, options.residual);
    if (!errors.ok()) return errors.status();
    row.bias = errors->vnmse_of_mean;
    row.bits = errors->bits;  // what residuals add may travel, too
  }
  return row;
}

// What all cases make together.
struct Results {
  std::vector<Row> rows;
  int skipped = 0;
};

// Layers must cover a vector of `count` elements.
Status Covered(size_t count, const std::vector<Layer>& layers) {
  size_t covered = 0;
  for (const Layer& layer : layers) covered += layer.count;
  if (layers.empty() || covered == count) return {};
  return InvalidArgument(fmt::format("layers of {} elements, data of {}", covered, count));
}

// Multiplies the inputs. An error of a result says nothing where its inputs are not finite, or
// where they have become zero.
Status Scale(const std::string& data, float scale, Vectors* inputs) {
  for (size_t rank = 0; rank < inputs->size(); ++rank) {
    std::vector<float>& values = (*inputs)[rank];
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i], scaled = value * scale;
      if (!std::isfinite(value)) {
        return InvalidArgument(
            fmt::format("{}: element {} of rank {} is {}", data, i, rank, value));
      }
      if (!std::isfinite(scaled) || (scaled == 0) != (value == 0)) {
        return InvalidArgument(fmt::format("{}: --scale {} makes {} of element {} of rank {}, {}",
                                           data, scale, scaled, i, rank, value));
      }
      values[i] = scaled;
    }
  }
  return {};
}

// All rows of one data set at one number of ranks.
Status RunCase(const Options& options, const std::vector<Way>& ways, const std::string& data,
               int nranks, const Report& report, Results* results) {
  std::vector<Vectors> samples;
  std::vector<std::vector<double>> exact;
  for (uint64_t repeat = 0; repeat < options.repeats; ++repeat) {
    Result<Vectors> made = MakeInputs(data, nranks, options.count, options.seed + repeat);
    if (!made.ok()) return made.status();
    if (Status s = Scale(data, options.scale, &*made); !s.ok()) return s;
    if (Status s = Covered((*made)[0].size(), options.layers); !s.ok()) return s;
    exact.push_back(ExactSum(*made));
    samples.push_back(*std::move(made));
  }
  for (const Way& way : ways) {
    Result<Row> row = Measure(options, samples, exact, way);
    // A codec that does not run over this algorithm, or not for so many ranks.
    if (!row.ok() && row.status().code() == Code::kInvalidArgument) {
      report.Skipped(fmt::format("{}, {} ranks: {}", data, nranks, row.status().message()));
      ++results->skipped;
      continue;
    }
    if (!row.ok()) return row.status();
    row->data = data;
    if (Status s = report.Print(*row); !s.ok()) return s;
    results->rows.push_back(*std::move(row));
  }
  return {};
}

Result<int> Run(Options options) {
  std::vector<std::string> data = options.data;
  if (data.empty()) {
    data = {"normal", "laplace", "t3", "grad"};
    data.insert(data.end(), RecordedGradients().begin(), RecordedGradients().end());
  }
  if (!options.layers_file.empty()) {
    Result<std::vector<Layer>> layers = ReadLayers(options.layers_file);
    if (!layers.ok()) return layers.status();
    options.layers = *std::move(layers);
  }
  const Report report(options.csv);
  report.Header(options.repeats, options.steps);
  Results results;
  std::vector<Way> ways;
  for (const Way& way : Ways(options)) {
    const Status known = Available(way);
    if (known.ok()) {
      ways.push_back(way);
    } else if (known.code() == Code::kInvalidArgument) {
      report.Skipped(known.message());
      ++results.skipped;
    } else {
      return known;
    }
  }
  for (const std::string& name : data) {
    for (const int nranks : options.ranks) {
      if (Status s = RunCase(options, ways, name, nranks, report, &results); !s.ok()) return s;
    }
  }
  if (!options.plot.empty()) {
    if (Status s = WritePlot(options.plot, results.rows); !s.ok()) return s;
  }
  return results.skipped == 0 ? kRan : kSkipped;
}

Result<int> RunAcceptance(const Options& options) {
  Checklist list(options.csv);
  if (Status s = CheckSums(&list); !s.ok()) return s;
  if (Status s = CheckUnbiased(&list); !s.ok()) return s;
  if (Status s = CheckTable(&list); !s.ok()) return s;
  const bool recorded = options.data.empty();
  const std::vector<std::string>& data = recorded ? RecordedGradients() : options.data;
  // The sample leaves out most large elements, which are what costs one scale for everything.
  std::vector<std::string> known;
  if (recorded) known = {"gradients:early"};
  if (Status s = CheckComparisons(data, known, &list); !s.ok()) return s;
  list.Total();
  if (list.failed() != 0) return kFailed;
  return list.skipped() == 0 ? kRan : kSkipped;
}

void AddOptions(CLI::App* app, Options* options) {
  app->add_option("--data", options->data,
                  "normal, laplace, t3, grad, gradients:early|middle|late, FILE.npy")
      ->delimiter(',');
  app->add_option("--ranks", options->ranks, "numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  app->add_option("--bits", options->bits, "bits per element of hbi; none: --bits ''")
      ->delimiter(',');
  app->add_option("--ref", options->references, "reference algorithms of hbi: direct, ring")
      ->delimiter(',')
      ->check(CLI::IsMember({"direct", "ring"}));
  app->add_option("--codec", options->codecs,
                  "a further codec, e.g. hbi:k=15,k2=15; {bits}: for each of the bits (repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--reducer", options->reducers,
                  "a reducer, e.g. topk:k=0.01|fp16; its steps have the residual that it says "
                  "(repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_flag("--all", options->every, "every codec of the library beside hbi's plain one");
  app->add_option("--algo", options->algo, "algorithm that carries it (default: the usual one)");
  app->add_option("--count", options->count, "elements (default: a file's own, else 131072)");
  app->add_option("--repeats", options->repeats, "runs with other seeds and steps (default 4)")
      ->check(CLI::Range(1, 1000));
  app->add_option("--steps", options->steps, "steps whose mean shows the bias (default 0: none)")
      ->check(CLI::Range(0, 100000));
  app->add_flag("--residual", options->residual, "the steps feed back errors (needs --steps)");
  app->add_option("--seed", options->seed, "seed of the first run's data (default 0)");
  app->add_option("--scale", options->scale, "factor of the inputs, in fp32 (default 1)")
      ->check([](const std::string& text) {
        const float scale = std::strtof(text.c_str(), nullptr);
        return std::isfinite(scale) && scale != 0 ? ""
                                                  : text + " is not a finite number other than 0";
      });
  app->add_option("--layers", options->layers_file,
                  "lines of a name and a number of elements: also the layer that errs most");
  app->add_flag("--csv", options->csv, "comma-separated values instead of a table");
  app->add_option("--plot", options->plot, "FILE.svg: error against bits");
  app->add_flag("--acceptance", options->acceptance, "what docs/accuracy.md promises, row by row");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Accuracy of compressed sums beside bf16 and MXFP8 rings, against the exact sum. "
      "Manual: docs/tools.md");
  AddOptions(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kRan : kCommandLine;
  }
  const Result<int> status = options.acceptance ? RunAcceptance(options) : Run(options);
  if (!status.ok()) {
    perf::PrintError("inccl-accuracy: {}: {}\n", CodeName(status.status().code()),
                     status.status().message());
    return kFailed;
  }
  return *status;
}

}  // namespace
}  // namespace inccl::tools

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::tools::Main(argc, argv); },
                                 inccl::tools::kFailed);
}
