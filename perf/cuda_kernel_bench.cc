// SPDX-License-Identifier: Apache-2.0
//
// Throughput of the CUDA kernels beside the device's own copy (docs/cuda.md): each kernel by itself
// on vectors that no cache holds, fp32, HBI of several sizes; plain sums of fp32 and bf16.
//
// usage: cuda_kernel_bench [--elements N] [--rounds N] [--json FILE]
// Exit status: 0; 2 for the command line; 3 for an error of CUDA; 4 where there is no GPU.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/cuda/launch.h"
#include "compress/cuda/layout.h"
#include "compress/hbi/format.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "perf/cuda/device.h"
#include "perf/support/output.h"
#include "perf/support/record.h"

namespace inccl::perf {
namespace {

constexpr int kRanks = 4;

struct Options {
  uint32_t elements = 1u << 27;
  int rounds = 11;
  std::string json;
};

// Gaussian data with scales that differ between superblocks, one window over and over.
void FillElements(uint32_t elements, uint64_t seed, DeviceBytes* to) {
  Rng rng(seed);
  std::vector<float> window(kWindow);
  for (uint32_t i = 0; i < kWindow; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(i / kSuperblock * 7 % 9) - 4);
    const double gauss = rng.Uniform() + rng.Uniform() + rng.Uniform() + rng.Uniform() - 2;
    window[i] = static_cast<float>(scale * gauss);
  }
  for (uint64_t at = 0; at < elements; at += kWindow) {
    const auto now = static_cast<size_t>(std::min<uint64_t>(kWindow, elements - at));
    to->Put(window.data(), now * 4, at * 4);
  }
}

struct Measured {
  double bits;  // of an element, or of a compressed one
  std::string kernel;
  double ms, bytes;
  uint64_t elements;
};

void AddRow(const Measured& measured, double copy_gbs, nlohmann::json* rows) {
  const double gbs = measured.bytes / measured.ms / 1e6;
  const double per_element = measured.bytes / static_cast<double>(measured.elements);
  PrintOut("{:>4} {:<22} {:9.3f} ms {:8.1f} GB/s {:6.2f} of copy {:7.2f} bytes/element\n",
           measured.bits, measured.kernel, measured.ms, gbs, gbs / copy_gbs, per_element);
  rows->push_back({{"bits", measured.bits},
                   {"kernel", measured.kernel},
                   {"ms", measured.ms},
                   {"gb_per_s", gbs},
                   {"of_copy", gbs / copy_gbs},
                   {"bytes_per_element", per_element}});
}

// A plan in the device's memory, and payloads of it.
class Bench {
 public:
  Bench(const Options& options, uint32_t bits8);
  void Run(double copy_gbs, nlohmann::json* rows);

 private:
  struct Stream {
    Stream(Bench* bench, uint32_t contributions, uint32_t copies);
    cuda::PackedArgs Args(uint32_t copy = 0) const;
    uint32_t contributions;
    std::vector<uint32_t> starts;
    uint64_t bytes;
    DeviceBytes device_starts;
    std::vector<std::unique_ptr<DeviceBytes>> data;
  };
  template <class Launch>
  void Row(const char* kernel, double bytes, Launch launch);
  uint64_t StartsOf(uint32_t contributions, std::vector<uint32_t>* starts) const;

  const Options& options_;
  const cuda::Launchers& kernels_ = *inccl_cuda_launchers();
  const uint32_t bits8_;
  hbi::Planner planner_;
  DeviceBytes elements_, output_, words_, own_words_, points_, tables_, choices_;
  std::vector<uint8_t> host_points_;
  cuda::SliceArgs slice_;
  double copy_gbs_ = 0;
  nlohmann::json* rows_ = nullptr;
};

constexpr size_t Superblocks(uint32_t elements) {
  return (elements + kSuperblock - 1) / kSuperblock;
}

Bench::Bench(const Options& options, uint32_t bits8)
    : options_(options),
      bits8_(bits8),
      planner_(Collective::kAllReduce, kRanks, hbi::Config{.bits8 = bits8}),
      elements_(size_t{options.elements} * 4),
      output_(size_t{options.elements} * 4),
      words_(Superblocks(options.elements) * hbi::kWordBytes),
      own_words_(words_.size()),
      points_(Superblocks(options.elements)),
      tables_(planner_.points().size() * 2 * sizeof(hbi::LevelTable)),
      choices_(planner_.points().size() * sizeof(cuda::LevelChoice)),
      host_points_(Superblocks(options.elements)) {
  FillElements(options.elements, 1, &elements_);
  Must(kernels_.side_words(cuda::ElementType::kFloat32, elements_.data(), options.elements,
                           words_.data<uint32_t>(), nullptr),
       "side_words");
  std::vector<uint8_t> words(words_.size());
  words_.Take(words.data(), words.size());
  hbi::PlanSummary summary;
  for (size_t s = 0; s < host_points_.size(); s += kWindow / kSuperblock) {
    const size_t now = std::min<size_t>(kWindow / kSuperblock, host_points_.size() - s);
    planner_.Plan(words.data() + s * hbi::kWordBytes, {host_points_.data() + s, now}, &summary);
  }
  points_.Put(host_points_.data(), host_points_.size());
  planner_.MakeTables();
  std::vector<cuda::LevelChoice> choices;
  for (const hbi::Point& point : planner_.points()) {
    const size_t at = 2 * choices.size() * sizeof(hbi::LevelTable);
    tables_.Put(point.sum, sizeof(hbi::LevelTable), at);
    tables_.Put(point.result, sizeof(hbi::LevelTable), at + sizeof(hbi::LevelTable));
    const auto* table = tables_.data<hbi::LevelTable>() + 2 * choices.size();
    choices.push_back({point.k, point.k2, table, table + 1});
  }
  choices_.Put(choices.data(), choices.size() * sizeof(cuda::LevelChoice));
  slice_ = {.words = words_.data<uint32_t>(),
            .points = points_.data(),
            .choices = choices_.data<cuda::LevelChoice>(),
            .count = options.elements,
            .counter = 12345};
}

uint64_t Bench::StartsOf(uint32_t contributions, std::vector<uint32_t>* starts) const {
  starts->resize(slice_.tiles());
  return cuda::TileStarts(
      host_points_,
      [&](uint8_t point) {
        const hbi::Point& levels = planner_.points()[point];
        return contributions == 0 ? hbi::Width(1, levels.k2) : hbi::Width(contributions, levels.k);
      },
      starts->data());
}

// contributions 0: of the result.
Bench::Stream::Stream(Bench* bench, uint32_t h, uint32_t copies)
    : contributions(h),
      bytes(bench->StartsOf(h, &starts)),
      device_starts(starts.size() * sizeof(uint32_t)) {
  device_starts.Put(starts.data(), device_starts.size());
  for (uint32_t i = 0; i < copies; ++i) data.push_back(std::make_unique<DeviceBytes>(bytes));
}

cuda::PackedArgs Bench::Stream::Args(uint32_t copy) const {
  return {data[copy]->data(), device_starts.data<uint32_t>(), std::max(contributions, 1u)};
}

template <class Launch>
void Bench::Row(const char* kernel, double bytes, Launch launch) {
  const double ms = MedianMilliseconds(options_.rounds, launch);
  AddRow({bits8_ / 8.0, kernel, ms, bytes, options_.elements}, copy_gbs_, rows_);
}

void Bench::Run(double copy_gbs, nlohmann::json* rows) {
  copy_gbs_ = copy_gbs;
  rows_ = rows;
  const auto type = cuda::ElementType::kFloat32;
  const double elements = 4.0 * options_.elements, words = static_cast<double>(words_.size());
  const Stream one(this, 1, kRanks), two(this, 2, 2), all(this, kRanks, 3), result(this, 0, 1);
  const auto size = [](const Stream& stream) { return static_cast<double>(stream.bytes); };
  Row("side words", elements + words, [&] {
    return kernels_.side_words(type, elements_.data(), options_.elements,
                               own_words_.data<uint32_t>(), nullptr);
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    cuda::EncodeArgs args{.slice = slice_, .elements = elements_.data(), .out = one.Args(rank)};
    args.slice.offsets = hbi::OffsetsOf(static_cast<int>(rank), kRanks, false);
    const auto encode = [&] { return kernels_.encode(type, args, nullptr); };
    if (rank == 0) {
      Row("encode", elements + words + size(one), encode);
    } else {
      Must(encode(), "encode");
    }
  }
  Row("encode and add", elements + words + size(one) + size(two), [&] {
    return kernels_.encode(
        type,
        {.slice = slice_, .elements = elements_.data(), .in = one.Args(0), .out = two.Args(0)},
        nullptr);
  });
  Row("packed sum, 1 + 1", 2 * size(one) + size(two), [&] {
    return kernels_.add({.slice = slice_, .a = one.Args(0), .b = one.Args(1), .out = two.Args(1)},
                        nullptr);
  });
  Row("packed sum, 2 + 2", 2 * size(two) + size(all), [&] {
    return kernels_.add({.slice = slice_, .a = two.Args(0), .b = two.Args(1), .out = all.Args()},
                        nullptr);
  });
  // Of the time alone: what is in these fields has no room for the sum.
  Row("packed sum, one width", 3 * size(all), [&] {
    return kernels_.add({.slice = slice_, .a = all.Args(0), .b = all.Args(1), .out = all.Args(2)},
                        nullptr);
  });
  Row("decode", elements + words + size(all), [&] {
    return kernels_.decode(type,
                           {.slice = slice_,
                            .words = words_.data<uint32_t>(),
                            .in = all.Args(),
                            .elements = output_.data()},
                           nullptr);
  });
  cuda::FoldArgs fold{.slice = slice_,
                      .source_count = kRanks - 1,
                      .own = elements_.data(),
                      .requantize = true,
                      .result_words = own_words_.data<uint32_t>(),
                      .result = result.Args(),
                      .elements = output_.data()};
  for (uint32_t i = 0; i + 1 < kRanks; ++i) fold.sources[i] = one.Args(i + 1);
  Row("fold, requantize", 2 * elements + 2 * words + 3 * size(one) + size(result),
      [&] { return kernels_.fold(type, fold, nullptr); });
}

// Plain sums of as many vectors, of as many bytes as those of fp32 above.
void RunReductions(const Options& options, double copy_gbs, nlohmann::json* rows) {
  const size_t bytes = size_t{options.elements} * 4;
  const DeviceBytes out(bytes);
  std::vector<std::unique_ptr<DeviceBytes>> in;
  for (uint64_t i = 0; i < 8; ++i) {
    in.push_back(std::make_unique<DeviceBytes>(bytes));
    FillElements(options.elements, i, in.back().get());
  }
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16}) {
    for (const uint32_t inputs : {2u, 4u, 8u}) {
      cuda::ReduceKernelArgs args{
          .type = type, .inputs = inputs, .outputs = 1, .count = bytes / SizeOf(type)};
      for (uint32_t i = 0; i < inputs; ++i) args.in[i] = in[i]->data();
      args.out[0] = out.data();
      const double moved = (inputs + 1.0) * static_cast<double>(bytes);
      const double ms = MedianMilliseconds(
          options.rounds, [&] { return inccl_cuda_launchers()->reduce(args, nullptr); });
      AddRow({8.0 * static_cast<double>(SizeOf(type)), fmt::format("reduce, {} inputs", inputs), ms,
              moved, args.count},
             copy_gbs, rows);
    }
  }
}

double CopyGigabytes(const Options& options) {
  const size_t bytes = size_t{options.elements} * 4;
  const DeviceBytes from(bytes), to(bytes);
  const double ms = MedianMilliseconds(options.rounds, [&] {
    return cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, nullptr);
  });
  return 2 * static_cast<double>(bytes) / ms / 1e6;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Throughput of the CUDA kernels");
  app.add_option("--elements", options.elements)->check(CLI::Range(1 << 20, 1 << 30));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--json", options.json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    PrintError("no CUDA device: {}\n", cudaGetErrorString(error));
    return 4;
  }
  cudaDeviceProp properties;
  Must(cudaGetDeviceProperties(&properties, 0), "properties");
  const double copy = CopyGigabytes(options);
  PrintOut("{}, {} elements, copy {:.1f} GB/s\n", properties.name, options.elements, copy);
  nlohmann::json rows = nlohmann::json::array();
  for (const uint32_t bits : {8u, 6u, 4u}) Bench(options, 8 * bits).Run(copy, &rows);
  RunReductions(options, copy, &rows);
  if (!options.json.empty()) {
    const nlohmann::ordered_json document = {{"device", properties.name},
                                             {"elements", options.elements},
                                             {"rounds", options.rounds},
                                             {"copy_gb_per_s", copy},
                                             {"kernels", rows}};
    if (const Status s = WriteDocument(options.json, document); !s.ok()) {
      PrintError("cuda_kernel_bench: {}\n", s.message());
      return kExitFailed;
    }
  }
  return 0;
}

}  // namespace
}  // namespace inccl::perf

int main(int argc, char** argv) {
  return inccl::perf::RunProgram([&] { return inccl::perf::Main(argc, argv); });
}
