// SPDX-License-Identifier: Apache-2.0
#include "tuning/tuner_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

#include "base/rng.h"
#include "base/text.h"
#include "base/types.h"

namespace inccl {
namespace {

constexpr size_t kMostFileBytes = 256 * 1024;
constexpr std::string_view kBlanks = " \t\r\v\f";

// Splits a line, up to its comment, into words.
std::vector<std::string_view> WordsOf(std::string_view line) {
  std::vector<std::string_view> words;
  size_t at = 0;
  while ((at = line.find_first_not_of(kBlanks, at)) != line.npos && line[at] != '#') {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

template <typename T>
bool ParseNumber(std::string_view word, T* value) {
  const char* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, *value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

// Finds the enumerator with this name.
template <typename Enum>
std::optional<Enum> Named(std::string_view word, int kinds) {
  for (int i = 0; i < kinds; ++i) {
    if (word == Name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

std::string Shown(std::string_view word) {
  std::string text(word.substr(0, 40));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

auto GroupOf(const TunerRow& row) { return std::tuple(row.collective, row.compressed, row.nranks); }

// Parses the words of a line into a row; the error says what is wrong.
Result<TunerRow> ParseRow(const std::vector<std::string_view>& words) {
  TunerRow row;
  if (words.size() != 5) {
    return InvalidArgument(fmt::format(
        "{} words; a line is COLLECTIVE RANKS plain|compressed BYTES|max ALGORITHM", words.size()));
  }
  const std::optional<Collective> collective = Named<Collective>(words[0], kCollectiveKinds);
  if (!collective) {
    return InvalidArgument(fmt::format("\"{}\" is no collective", Shown(words[0])));
  }
  row.collective = *collective;
  if (!ParseNumber(words[1], &row.nranks) || row.nranks < 2 || row.nranks > kMaxRanks) {
    return InvalidArgument(
        fmt::format("\"{}\" is no number of ranks in [2, {}]", Shown(words[1]), kMaxRanks));
  }
  if (words[2] != "plain" && words[2] != "compressed") {
    return InvalidArgument(fmt::format("\"{}\" is neither plain nor compressed", Shown(words[2])));
  }
  row.compressed = words[2] == "compressed";
  if (words[3] != "max" && !ParseNumber(words[3], &row.max_bytes)) {
    return InvalidArgument(
        fmt::format("\"{}\" is neither a number of bytes nor max", Shown(words[3])));
  }
  const std::optional<Algorithm> algorithm = Named<Algorithm>(words[4], kAlgorithms);
  if (!algorithm) {
    return InvalidArgument(fmt::format("\"{}\" is no algorithm", Shown(words[4])));
  }
  row.algorithm = *algorithm;
  if (!HasSchedule(row.collective, row.algorithm, row.nranks)) {
    return InvalidArgument(fmt::format("there is no {} on {} ranks with algorithm {}",
                                       Name(row.collective), row.nranks, Name(row.algorithm)));
  }
  return row;
}

// Parses the words of a line "cost NAME VALUE" into `costs`. `given`: the names of earlier lines.
Status ParseCost(const std::vector<std::string_view>& words, CostConstants* costs,
                 std::set<std::string_view>* given) {
  if (words.size() != 3) {
    return InvalidArgument(fmt::format("{} words; such a line is cost NAME VALUE", words.size()));
  }
  for (const CostField& field : kCostFields) {
    if (words[1] != field.name) continue;
    if (!given->insert(field.name).second) {
      return InvalidArgument(fmt::format("{} is given twice", field.name));
    }
    uint64_t value = 0;
    if (!ParseNumber(words[2], &value) || value > field.most) {
      return InvalidArgument(fmt::format("{}: \"{}\" is no whole number in [0, {}]", field.name,
                                         Shown(words[2]), field.most));
    }
    costs->*field.value = value;
    return Status::Ok();
  }
  std::string names;
  for (const CostField& field : kCostFields) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", field.name);
  }
  return InvalidArgument(
      fmt::format("\"{}\" is no constant of the cost model; these are {}", Shown(words[1]), names));
}

}  // namespace

std::string FormatCost(const CostField& field, const CostConstants& costs) {
  return fmt::format("cost {} {}", field.name, costs.*field.value);
}

std::string FormatRow(const TunerRow& row) {
  return fmt::format(
      "{} {} {} {} {}", Name(row.collective), row.nranks, row.compressed ? "compressed" : "plain",
      row.max_bytes == TunerRow::kAnyBytes ? std::string("max") : fmt::format("{}", row.max_bytes),
      Name(row.algorithm));
}

Result<TunerTable> TunerTable::Parse(std::string_view text, const std::string& file) {
  TunerTable table;
  std::set<std::string_view> costs_given;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    const std::vector<std::string_view> words = WordsOf(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (words.empty()) continue;
    if (words[0] == "cost") {
      const Status status = ParseCost(words, &table.costs_, &costs_given);
      if (status.ok()) continue;
      return InvalidArgument(fmt::format("{}:{}: {}", file, line, status.message()));
    }
    Result<TunerRow> row = ParseRow(words);
    if (!row.ok()) {
      return InvalidArgument(fmt::format("{}:{}: {}", file, line, row.status().message()));
    }
    // Rows ascend within a group, and a group must not be continued after another one.
    for (const TunerRow& before : table.rows_) {
      if (GroupOf(before) == GroupOf(*row) &&
          (before.max_bytes >= row->max_bytes || GroupOf(table.rows_.back()) != GroupOf(*row))) {
        return InvalidArgument(fmt::format(
            "{}:{}: \"{}\" after \"{}\": the lines of a collective, number of ranks and "
            "kind stand together, their BYTES ascending",
            file, line, FormatRow(*row), FormatRow(before)));
      }
    }
    table.rows_.push_back(*row);
  }
  table.rate_given_ = costs_given.contains("network_byte_ps");
  table.latency_given_ = costs_given.contains("network_latency_ns");
  std::stable_sort(table.rows_.begin(), table.rows_.end(),
                   [](const TunerRow& a, const TunerRow& b) { return GroupOf(a) < GroupOf(b); });
  return table;
}

Result<TunerTable> TunerTable::Load(const std::string& path) {
  int error = 0;
  Result<std::string> text = ReadTextFile("tuner table", path, kMostFileBytes, &error);
  if (!text.ok()) return InvalidArgument(text.status().message());
  return Parse(*text, path);
}

std::optional<Algorithm> TunerTable::Find(Collective collective, int nranks, bool compressed,
                                          uint64_t bytes) const {
  // Finds the group with the largest number of ranks that is not above `nranks`.
  const auto end =
      std::upper_bound(rows_.begin(), rows_.end(), std::tuple(collective, compressed, nranks),
                       [](const auto& group, const TunerRow& row) { return group < GroupOf(row); });
  if (end == rows_.begin()) return std::nullopt;
  const auto group = GroupOf(*(end - 1));
  if (std::get<0>(group) != collective || std::get<1>(group) != compressed) return std::nullopt;
  std::optional<Algorithm> found;
  for (auto row = end; row != rows_.begin() && GroupOf(*(row - 1)) == group; --row) {
    if (bytes > (row - 1)->max_bytes) break;
    found = (row - 1)->algorithm;
  }
  return found;
}

void TunerTable::SetLink(uint32_t mbps, uint32_t round_trip_us) {
  if (mbps != 0 && !rate_given_) {
    // 17/16: headers of TCP, IP and Ethernet, rounded up.
    costs_.network_byte_ps = std::clamp<uint64_t>(8'500'000 / mbps, 1, kMostCostPs);
  }
  if (round_trip_us >= kLongRoundTripUs && !latency_given_) {
    costs_.network_latency_ns = std::min<uint64_t>(uint64_t{500} * round_trip_us, kMostCostNs);
  }
}

uint64_t TunerTable::Digest() const {
  uint64_t digest = 0;
  for (const TunerRow& row : rows_) {
    digest = Mix64(
        digest ^
        (uint64_t{static_cast<uint8_t>(row.collective)} << 24 | uint64_t{row.compressed} << 16 |
         uint64_t{static_cast<uint8_t>(row.algorithm)} << 8 | static_cast<uint64_t>(row.nranks)) ^
        0x9E3779B97F4A7C15u);
    digest = Mix64(digest ^ row.max_bytes);
  }
  if (costs_ == CostConstants()) return digest;
  for (const CostField& field : kCostFields) digest = Mix64(digest ^ costs_.*field.value);
  return digest;
}

}  // namespace inccl
