// SPDX-License-Identifier: Apache-2.0
#include "perf/regress/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "perf/support/statistics.h"

namespace inccl::perf {
namespace {

using Json = nlohmann::json;
using Verdict = Comparison::Verdict;

// What tells one case from another, in the order in which a name has it.
constexpr std::array<const char*, 10> kFields = {"op",    "nranks",  "codec_spec", "type",
                                                 "redop", "root",    "algo",       "transport",
                                                 "bytes", "in_place"};

std::string TextOf(const char* field, const Json& value) {
  if (value.is_null()) return "";
  const std::string name = field;
  if (name == "nranks") return fmt::format("{} ranks", value.dump());
  // Filled with zeros, so that the order of names is that of sizes.
  if (name == "bytes") return fmt::format("{:012} B", value.get<uint64_t>());
  if (name == "root") return fmt::format("root {}", value.dump());
  if (name == "in_place") return value.get<bool>() ? "in place" : "";
  const std::string text = value.get<std::string>();
  const bool automatic = text == "auto" && (name == "algo" || name == "transport");
  return automatic || (name == "codec_spec" && text == "none") ? "" : text;
}

// Also what the header has that makes another case: an emulated link, several calls at a time.
std::string NameOf(const Json& header, const Json& row) {
  std::string name;
  for (const char* field : kFields) {
    const std::string text = TextOf(field, row.value(field, Json()));
    if (!text.empty()) name += (name.empty() ? "" : " ") + text;
  }
  if (header.value("link_gbps", 0.0) > 0) {
    name += fmt::format(" link {:g} Gbit/s", header.value("link_gbps", 0.0));
  }
  if (header.value("link_us", 0.0) > 0) {
    name += fmt::format(" {:g} us", header.value("link_us", 0.0));
  }
  if (header.value("aggregated", 1) > 1) {
    name += fmt::format(" x{}", header.value("aggregated", 1));
  }
  return name;
}

const char* TextOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame: return "";
    case Verdict::kFaster: return "faster";
    case Verdict::kSlower: return "SLOWER";
    case Verdict::kOnlySaved: return "not run";
    case Verdict::kOnlyNew: return "new";
  }
  return "";
}

}  // namespace

Status AddRatios(const Json& document, const std::string& file, Ratios* ratios) {
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(fmt::format("{}: {}", file, what));
  };
  // Whatever is missing or of another type is an exception of the parser's library.
  try {
    if (!document.is_object() || !document.contains("rows") || !document["rows"].is_array()) {
      return wrong("no rows: not a file that a benchmark has written with --json");
    }
    size_t added = 0;
    const Json header = document.value("header", Json::object());
    for (const Json& row : document["rows"]) {
      const Json ratio = row.value("vs_limit", Json());
      if (!ratio.is_number() || ratio.get<double>() <= 0) continue;
      (*ratios)[NameOf(header, row)].push_back(ratio.get<double>());
      ++added;
    }
    if (added == 0) return wrong("no row has a ratio to the limit; run the benchmark with --limit");
  } catch (const Json::exception& error) {
    return wrong(fmt::format("a row is not as a benchmark writes it: {}", error.what()));
  }
  return Status::Ok();
}

std::vector<Comparison> Compare(const Ratios& saved, const Ratios& now, double tolerance) {
  std::vector<Comparison> comparisons;
  for (const auto& [name, ratios] : saved) {
    Comparison c{name, Median(ratios), 0, Verdict::kOnlySaved};
    if (const auto found = now.find(name); found != now.end()) {
      c.now = Median(found->second);
      c.verdict = c.now > c.saved * (1 + tolerance)   ? Verdict::kSlower
                  : c.saved > c.now * (1 + tolerance) ? Verdict::kFaster
                                                      : Verdict::kSame;
    }
    comparisons.push_back(std::move(c));
  }
  for (const auto& [name, ratios] : now) {
    if (!saved.contains(name)) {
      comparisons.push_back({name, 0, Median(ratios), Verdict::kOnlyNew});
    }
  }
  std::sort(comparisons.begin(), comparisons.end(),
            [](const Comparison& a, const Comparison& b) { return a.name < b.name; });
  return comparisons;
}

std::string FormatComparison(const std::vector<Comparison>& comparisons, double tolerance) {
  size_t width = 4;
  for (const Comparison& c : comparisons) width = std::max(width, c.name.size());
  std::string text =
      fmt::format("# time / streaming limit, medians\n#{:<{}}  {:>8}  {:>8}  {:>6}\n", "case",
                  width - 1, "saved", "now", "change");
  std::array<size_t, 5> counts{};
  for (const Comparison& c : comparisons) {
    ++counts[static_cast<size_t>(c.verdict)];
    const auto cell = [](double value, int places) {
      return value > 0 ? fmt::format("{:.{}f}", value, places) : std::string("-");
    };
    text += fmt::format("{:<{}}  {:>8}  {:>8}  {:>6}  {}", c.name, width, cell(c.saved, 2),
                        cell(c.now, 2), cell(c.change(), 2), TextOf(c.verdict));
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  const auto count = [&](Verdict verdict) { return counts[static_cast<size_t>(verdict)]; };
  text += fmt::format(
      "# {} slower, {} faster by more than {:.0f} %, {} within it; {} not run, {} new\n",
      count(Verdict::kSlower), count(Verdict::kFaster), tolerance * 100, count(Verdict::kSame),
      count(Verdict::kOnlySaved), count(Verdict::kOnlyNew));
  return text;
}

}  // namespace inccl::perf
