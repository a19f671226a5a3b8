// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/reference_table.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <regex>
#include <sstream>

#include "perf/accuracy/inputs.h"
#include "perf/accuracy/numpy_random.h"
#include "perf/accuracy/table_text.h"

namespace inccl::tools {
namespace {

constexpr uint64_t kScaledTogether = 256;
constexpr int kRecordedRanks = 8;

bool IsRecorded(const std::string& data) {
  return data == "early" || data == "middle" || data == "late";
}

// The gradients of the ranks from `first` on.
Result<Vectors> RecordedSample(const std::string& data, int first, int nranks) {
  Result<Vectors> all = MakeInputs("gradients:" + data, kRecordedRanks, 0, 0);
  if (!all.ok()) return all;
  return Vectors(all->begin() + first, all->begin() + first + nranks);
}

std::optional<Way> WayOf(const std::string& name, const std::string& bits) {
  if (name == "MXFP8 ring") return Mxfp8Reference();
  const std::string hbi = "hbi:bits=" + bits + ",levels=energy";
  if (name == "H direct") return CodecWay(hbi, "direct");
  if (name == "H ring") return CodecWay(hbi + ",ref=ring", "ring");
  if (name == "H direct rht") return CodecWay(hbi + ",rht=1", "direct");
  return std::nullopt;
}

// The scales of the data set grad, one per superblock, shared by the ranks.
std::vector<double> GradScales(NumpyRandom& random, uint64_t count) {
  const size_t superblocks = count / kScaledTogether;
  std::vector<bool> narrow(superblocks);
  std::vector<double> first(superblocks), second(superblocks);
  for (size_t i = 0; i < superblocks; ++i) narrow[i] = random.Uniform() < 0.79;
  for (double& x : first) x = -3.99 + 1.22 * random.Normal();
  for (double& x : second) x = -16.41 + 4.63 * random.Normal();
  for (size_t i = 0; i < superblocks; ++i) first[i] = std::exp(narrow[i] ? first[i] : second[i]);
  return first;
}

Status AddLine(const std::string& line, std::vector<TableEntry>* entries) {
  static const std::regex form("(\\w+) +n=(\\d+) (.*\\S) +([0-9./]+) bits +([0-9.e -]+)");
  std::smatch match;
  if (!std::regex_match(line, match, form)) {
    return InvalidArgument(fmt::format("table: not understood: {}", line));
  }
  std::istringstream all_bits(match[4]), errors(match[5]);
  std::string bits;
  TableEntry entry{match[1], std::stoi(match[2]), match[3], {}, 0, 0};
  while (std::getline(all_bits, bits, '/')) {
    const std::optional<Way> way = WayOf(entry.way_name, bits);
    if (!way || !(errors >> entry.vnmse)) {
      return InvalidArgument(fmt::format("table: unknown way or missing error: {}", line));
    }
    entry.way = *way;
    entry.bits = std::stod(bits);
    entries->push_back(entry);
  }
  if (errors >> entry.vnmse) {
    return InvalidArgument(fmt::format("table: more errors than bits: {}", line));
  }
  return {};
}

}  // namespace

std::string_view TableText() { return kTableText; }

Result<std::vector<TableEntry>> ParseTable(std::string_view text) {
  std::vector<TableEntry> entries;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (Status s = AddLine(line, &entries); !s.ok()) return s;
  }
  return entries;
}

uint32_t TableSamples(const std::string& data, int nranks) {
  return IsRecorded(data) ? static_cast<uint32_t>(kRecordedRanks / nranks) : 4;
}

Result<Vectors> TableSample(const std::string& data, int nranks, uint32_t sample) {
  if (IsRecorded(data)) return RecordedSample(data, static_cast<int>(sample) * nranks, nranks);
  NumpyRandom random(100 * sample + static_cast<uint32_t>(nranks));
  std::vector<double> scales;
  double (NumpyRandom::*draw)() = &NumpyRandom::Normal;
  if (data == "laplace") {
    draw = &NumpyRandom::Laplace;
  } else if (data == "t3") {
    draw = &NumpyRandom::StudentT3;
  } else if (data == "grad") {
    scales = GradScales(random, kTableCount);
  } else if (data != "gauss") {
    return InvalidArgument(fmt::format("table: unknown data set {}", data));
  }
  Vectors ranks(static_cast<size_t>(nranks), std::vector<float>(kTableCount));
  for (std::vector<float>& rank : ranks) {
    for (size_t i = 0; i < rank.size(); ++i) {
      const double scale = scales.empty() ? 1.0 : scales[i / kScaledTogether];
      rank[i] = static_cast<float>(scale * (random.*draw)());
    }
  }
  return ranks;
}

}  // namespace inccl::tools
