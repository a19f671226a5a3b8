// SPDX-License-Identifier: Apache-2.0
#include "perf/support/datasets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numbers>
#include <regex>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/rng.h"

namespace inccl::perf {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSuperblock = 256;
constexpr std::string_view kRankPlaceholder = "{rank}";
constexpr std::string_view kGradientsPrefix = "gradients:";

// A seed of one stream of numbers: equal arguments, equal stream.
uint64_t StreamSeed(uint64_t seed, uint64_t kind, uint64_t index) {
  return Mix64(seed ^ Mix64(kind ^ Mix64(index)));
}

// Box and Muller (1958): two independent standard normal values from two uniform ones.
struct NormalPair {
  double first, second;
};
NormalPair NextNormals(Rng& rng) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - rng.Uniform()));
  const double angle = 2.0 * std::numbers::pi * rng.Uniform();
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::vector<float> Normal(Rng rng, uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; i += 2) {
    const NormalPair pair = NextNormals(rng);
    values[i] = static_cast<float>(pair.first);
    if (i + 1 < count) values[i + 1] = static_cast<float>(pair.second);
  }
  return values;
}

// The scale of a superblock, from a stream that all ranks share.
double GradScale(uint64_t seed, uint64_t superblock) {
  Rng rng(StreamSeed(seed, 1, superblock));
  const bool wide = rng.Uniform() >= 0.79;
  const double z = NextNormals(rng).first;
  return std::exp(wide ? -16.41 + 4.63 * z : -3.99 + 1.22 * z);
}

std::vector<float> Grad(uint64_t seed, Rng rng, uint64_t count) {
  std::vector<float> values = Normal(rng, count);
  for (uint64_t begin = 0; begin < count; begin += kSuperblock) {
    const double scale = GradScale(seed, begin / kSuperblock);
    for (uint64_t i = begin; i < std::min(count, begin + kSuperblock); ++i) {
      values[i] = static_cast<float>(scale * values[i]);
    }
  }
  return values;
}

// The steps S of all files stepS_rank0.npy in a directory.
Result<std::set<uint64_t>> StepsIn(const std::string& directory) {
  std::set<uint64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string_view prefix = "step";
    const std::string_view suffix = "_rank0.npy";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    uint64_t step = 0;
    const char* last = name.data() + name.size() - suffix.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), last, step);
    if (parsed.ec == std::errc() && parsed.ptr == last) steps.insert(step);
  }
  if (error) return SystemErrorErrno(directory, error.value());
  return steps;
}

// The name with {rank} of the files of one recorded step.
Result<std::string> GradientsPattern(std::string_view which) {
  if (which != "early" && which != "middle" && which != "late") {
    return InvalidArgument(fmt::format("data set gradients:{}: not early, middle or late", which));
  }
  Result<std::string> directory = GradientsDirectory();
  if (!directory.ok()) return directory.status();
  Result<std::set<uint64_t>> steps = StepsIn(*directory);
  if (!steps.ok()) return steps.status();
  if (steps->size() != 3) {
    return InvalidArgument(
        fmt::format("{}: {} steps of gradients, three are expected", *directory, steps->size()));
  }
  const int index = which == "early" ? 0 : which == "middle" ? 1 : 2;
  return fmt::format("{}/step{}_rank{{rank}}.npy", *directory, *std::next(steps->begin(), index));
}

struct NpyArray {
  std::vector<uint64_t> shape;  // one or two extents
  std::vector<float> values;    // their product, last dimension contiguous
};

// A file as numpy.save writes an array of float32 in C order, with one or two dimensions; refuses
// every other one.
Result<NpyArray> ReadNpy(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  std::string bytes;
  char part[1 << 16];
  while (file != nullptr) {
    const size_t read = std::fread(part, 1, sizeof part, file.get());
    bytes.append(part, read);
    if (read < sizeof part) break;
  }
  if (file == nullptr || std::ferror(file.get()) != 0) return SystemErrorErrno(path, errno);
  static const std::regex header(
      "\\{'descr': '<f4', 'fortran_order': False, 'shape': \\((\\d{1,15}),(?: (\\d{1,15}))?\\), "
      "\\} "
      "*\n");
  constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
  const size_t length =
      bytes.size() < 10 ? 0 : static_cast<uint8_t>(bytes[8]) | static_cast<uint8_t>(bytes[9]) << 8;
  const std::string text = bytes.size() < 10 ? "" : bytes.substr(10, length);
  std::smatch match;
  if (!bytes.starts_with(kMagic) || !std::regex_match(text, match, header)) {
    return InvalidArgument(
        path + ": not as numpy.save writes an array of float32 with one or two dimensions");
  }
  NpyArray array{.shape = {std::stoull(match[1])}, .values = {}};
  if (match[2].matched) array.shape.push_back(std::stoull(match[2]));
  unsigned __int128 count = 1;
  for (const uint64_t extent : array.shape) count *= extent;
  const size_t data = 10 + length;
  if (count * sizeof(float) != bytes.size() - data) {
    return InvalidArgument(fmt::format("{}: {} bytes of elements, not what its shape ({}) says",
                                       path, bytes.size() - data, fmt::join(array.shape, ", ")));
  }
  array.values.resize(static_cast<size_t>(count));
  if (count > 0) std::memcpy(array.values.data(), bytes.data() + data, bytes.size() - data);
  return array;
}

// Where the data of one rank lies: a file and the part of it that is this rank's.
struct Source {
  NpyArray array;
  bool per_rank = false;  // the name had {rank}
};

Result<Source> Load(const std::string& spec, int rank) {
  std::string path = spec;
  if (spec.starts_with(kGradientsPrefix)) {
    Result<std::string> pattern =
        GradientsPattern(std::string_view(spec).substr(kGradientsPrefix.size()));
    if (!pattern.ok()) return pattern.status();
    path = *std::move(pattern);
  } else if (!spec.ends_with(".npy")) {
    return InvalidArgument(fmt::format(
        "unknown data set '{}': normal, grad, gradients:early|middle|late or FILE.npy", spec));
  }
  const size_t at = path.find(kRankPlaceholder);
  if (at != std::string::npos) path.replace(at, kRankPlaceholder.size(), std::to_string(rank));
  Result<NpyArray> array = ReadNpy(path);
  if (!array.ok()) return array.status();
  return Source{*std::move(array), at != std::string::npos};
}

Result<std::vector<float>> FromFile(const std::string& spec, int rank, uint64_t count) {
  Result<Source> source = Load(spec, rank);
  if (!source.ok()) return source.status();
  std::span<const float> values(source->array.values);
  const std::vector<uint64_t>& shape = source->array.shape;
  uint64_t at = 0;
  if (!source->per_rank && shape.size() == 2) {
    if (static_cast<uint64_t>(rank) >= shape[0]) {
      return InvalidArgument(
          fmt::format("data set {}: {} rows, none for rank {}", spec, shape[0], rank));
    }
    values = values.subspan(static_cast<uint64_t>(rank) * shape[1], shape[1]);
  } else if (!source->per_rank && !values.empty()) {
    at = static_cast<uint64_t>(static_cast<unsigned __int128>(rank) * count % values.size());
  }
  if (values.empty() && count > 0) {
    return InvalidArgument(fmt::format("data set {}: no element for rank {}", spec, rank));
  }
  std::vector<float> result(count);
  for (float& value : result) {
    value = values[at];
    at = at + 1 == values.size() ? 0 : at + 1;
  }
  return result;
}

}  // namespace

Result<std::vector<float>> MakeData(const std::string& spec, int rank, int nranks, uint64_t count,
                                    uint64_t seed) {
  if (rank < 0 || rank >= nranks) {
    return InvalidArgument(
        fmt::format("data set {}: rank {} is not in [0, {})", spec, rank, nranks));
  }
  const Rng rng(StreamSeed(seed, 0, static_cast<uint64_t>(rank)));
  if (spec == "normal") return Normal(rng, count);
  if (spec == "grad") return Grad(seed, rng, count);
  return FromFile(spec, rank, count);
}

Result<uint64_t> NaturalCount(const std::string& spec) {
  if (spec == "normal" || spec == "grad") return uint64_t{0};
  Result<Source> source = Load(spec, 0);
  if (!source.ok()) return source.status();
  const std::vector<uint64_t>& shape = source->array.shape;
  if (!source->per_rank && shape.size() == 2) return shape[1];
  return uint64_t{source->array.values.size()};
}

Result<std::string> GradientsDirectory() {
  if (const char* named = std::getenv("INCCL_GRADIENTS_DIR"); named != nullptr && *named != 0) {
    return std::string(named);
  }
  std::error_code error;
  const fs::path below = fs::path("data") / "gradients";
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = fs::path("share") / "inccl" / "gradients";
  for (fs::path at = program.parent_path(); !error && at.has_relative_path();
       at = at.parent_path()) {
    for (const fs::path& place : {at / below, at / installed}) {
      if (fs::is_directory(place, error)) return place.string();
      error.clear();
    }
  }
  const fs::path source = fs::path(INCCL_PERF_SOURCE_DIR) / below;
  if (fs::is_directory(source, error)) return source.string();
  return InvalidArgument(
      fmt::format("no data/gradients or share/inccl/gradients above {}, nor {}; "
                  "set INCCL_GRADIENTS_DIR",
                  program.string(), source.string()));
}

}  // namespace inccl::perf
