// SPDX-License-Identifier: Apache-2.0
#include "tuning/tuner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/text.h"
#include "base/types.h"
#include "config/values.h"
#include "tuning/cost_model.h"

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
  table.site_latency_given_ = costs_given.contains("site_latency_ns");
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
  if (latency_given_) {
    if (!site_latency_given_) costs_.site_latency_ns = costs_.network_latency_ns;
    return;
  }
  costs_.network_latency_ns = round_trip_us < kLongRoundTripUs
                                  ? CostConstants().network_latency_ns
                                  : std::min<uint64_t>(uint64_t{500} * round_trip_us, kMostCostNs);
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

namespace {

using Set = std::bitset<kAlgorithms>;

// On one host: up to this many bytes fewer steps count for more than fewer bytes. One-shot moves
// (n-1) times the data instead of 2(n-1)/n, in one step instead of two.
constexpr uint64_t kOneShotBytes = 16 * 1024;
// With more ranks than this, a small call uses the logarithmic algorithms.
constexpr int kManyRanks = 16;
// The agreement of a compressed call of up to this many uncompressed bytes is one-shot.
constexpr uint64_t kSideOneShotBytes = 256 * 1024;

Set Bit(Algorithm algorithm) { return Set(1ull << static_cast<size_t>(algorithm)); }

Set AlgorithmsNamed(std::string_view name) {
  Set set;
  for (const AlgorithmTraits& row : kAlgorithmTable) {
    if (name == row.own || name == row.family) set |= Bit(row.algorithm);
  }
  return set;
}

Set Existing(Collective collective) {
  Set set;
  for (int a = 0; a < kAlgorithms; ++a) {
    if (HasSchedules(collective, static_cast<Algorithm>(a))) set.set(static_cast<size_t>(a));
  }
  return set;
}

// "direct_two_shot,ring": the names of these in INCCL_ALGO.
std::string OwnNames(const Set& set) {
  std::string names;
  for (const AlgorithmTraits& row : kAlgorithmTable) {
    if (!set.test(static_cast<size_t>(row.algorithm))) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ",", row.own);
  }
  return names;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == text.npos ? text.npos : end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

Result<Set> ParseList(std::string_view list, std::string_view whole) {
  const bool negated = !list.empty() && list.front() == '^';
  if (negated) list.remove_prefix(1);
  Set set;
  for (const std::string_view name : Split(list, ',')) {
    const Set named = name.empty() ? Set() : AlgorithmsNamed(name);
    if (named.none()) {
      return InvalidArgument(
          fmt::format("algorithm \"{}\" in \"{}\": not one of {}", name, whole, AlgorithmNames()));
    }
    set |= named;
  }
  return negated ? ~set : set;
}

// The algorithm of `set` with the least estimate; the first of equals in the table of algorithms.
Choice ByModel(const TunerCall& call, const Set& set, const CostConstants& costs) {
  Choice choice{.rule = TunerRule::kModel};
  uint64_t least = UINT64_MAX;
  for (const AlgorithmTraits& row : kAlgorithmTable) {
    const auto index = static_cast<size_t>(row.algorithm);
    if (!set.test(index)) continue;
    const CostEstimate estimate = EstimateCost(call, row.algorithm, costs);
    choice.estimates_ns[index] = std::max<uint64_t>(1, estimate.ns);
    if (estimate.ns >= least) continue;
    least = estimate.ns;
    choice.algorithm = row.algorithm;
    choice.side_one_shot = estimate.side_one_shot;
  }
  return choice;
}

// For ranks on one host. `set` is not empty.
std::pair<Algorithm, TunerRule> Preferred(const TunerCall& call, const Set& set) {
  const auto in_set = [&](Algorithm algorithm) { return set.test(static_cast<size_t>(algorithm)); };
  const auto first_in_set = [&] {
    return std::find_if(std::begin(kAlgorithmTable), std::end(kAlgorithmTable),
                        [&](const AlgorithmTraits& row) { return in_set(row.algorithm); })
        ->algorithm;
  };
  if (set.count() == 1) return {first_in_set(), TunerRule::kOnlyOne};
  const Algorithm first = first_in_set();
  if (call.bytes() <= kOneShotBytes && call.nranks > kManyRanks) {
    for (const Algorithm algorithm : {Algorithm::kRecursiveDoubling, Algorithm::kTree}) {
      if (in_set(algorithm)) return {algorithm, TunerRule::kLogarithmic};
    }
  } else if (call.bytes() <= kOneShotBytes && in_set(Algorithm::kOneShot)) {
    return {Algorithm::kOneShot, TunerRule::kOneStep};
  }
  return {first, TunerRule::kInOrder};
}

// Whether filter, codec and `reproducible` admit an algorithm.
bool Admitted(const TunerCall& call, const AlgorithmFilter& filter, Algorithm algorithm) {
  return filter.Admits(call.collective, algorithm) &&
         (call.route.group == 0 || TraitsOf(algorithm).direct) &&
         (!call.reproducible || FoldsInRankOrder(call.collective, algorithm));
}

Set RankOrdered(Collective collective) {
  Set set;
  for (int a = 0; a < kAlgorithms; ++a) {
    set.set(static_cast<size_t>(a), FoldsInRankOrder(collective, static_cast<Algorithm>(a)));
  }
  return set;
}

// The error when no algorithm is left, with the reason.
Status NothingLeft(const TunerCall& call, const AlgorithmFilter& filter) {
  const char* const name = Name(call.collective);
  if (!filter.AdmitsAny(call.collective)) {
    return InvalidArgument(fmt::format(
        "{}: none of its algorithms is admitted by \"{}\" (INCCL_ALGO, config->algorithm); "
        "\"{};{}:{}\" admits all of them",
        name, filter.text(), filter.text(), name, OwnNames(Existing(call.collective))));
  }
  Set with_other_hosts;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (TraitsOf(algorithm).several_hosts && Admitted(call, filter, algorithm)) {
      with_other_hosts |= Bit(algorithm);
    }
  }
  if (with_other_hosts.any()) {
    return InvalidArgument(fmt::format(
        "{}: \"{}\" (INCCL_ALGO, config->algorithm) admits {} only, which needs several "
        "hosts, of which one has several ranks{}; the number of ranks is {}, that of "
        "hosts {}",
        name, filter.text(), OwnNames(with_other_hosts),
        HasRoot(call.collective) ? "" : ", or several sites", call.nranks, HostsOf(call)));
  }
  if (call.route.group == 0) {
    return InvalidArgument(
        fmt::format("{}: none of the admitted algorithms sums in rank order, which `reproducible` "
                    "asks for (direct does)",
                    Name(call.collective)));
  }
  std::string admitted;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (!filter.Admits(call.collective, algorithm)) continue;
    admitted += fmt::format("{}{}", admitted.empty() ? "" : ", ", Name(algorithm));
  }
  return InvalidArgument(
      fmt::format("{}: {} runs on direct only, and the algorithms admitted are {}",
                  Name(call.collective), call.route.because, admitted));
}

// The algorithms whose slots fit the budget.
Set Fitting(const TunerCall& call) {
  Set set;
  for (int a = 0; a < kAlgorithms; ++a) {
    set.set(static_cast<size_t>(a), SliceBytesFor(call.collective, static_cast<Algorithm>(a),
                                                  call.nranks, call.hosts, call.slots) != 0);
  }
  return set;
}

// The error when no algorithm of `set` fits the budget; it has the need of the smallest.
Status NothingFits(const TunerCall& call, const Set& set) {
  uint64_t need = UINT64_MAX;
  for (int a = 0; a < kAlgorithms; ++a) {
    if (!set.test(static_cast<size_t>(a))) continue;
    need = std::min(need,
                    SlotBytes(call.collective, static_cast<Algorithm>(a), call.nranks, call.hosts,
                              call.slots, LeastSliceBytes(call.collective, call.slots)));
  }
  return InvalidArgument(fmt::format(
      "{}: the slots of {} on {} ranks take {} bytes per rank, more than INCCL_SLOT_BYTES_MAX={}; "
      "raise it, or admit an algorithm with fewer peers (INCCL_ALGO, config->algorithm)",
      Name(call.collective), OwnNames(set), call.nranks, need, call.slots.bytes));
}

// "94.3 us by the cost model; ring 120.5 us, tree 180.0 us", in ascending order.
std::string Estimates(const Choice& choice) {
  std::vector<std::pair<uint64_t, Algorithm>> others;
  for (int a = 0; a < kAlgorithms; ++a) {
    const uint64_t ns = choice.estimates_ns[static_cast<size_t>(a)];
    const auto algorithm = static_cast<Algorithm>(a);
    if (ns != 0 && algorithm != choice.algorithm) others.emplace_back(ns, algorithm);
  }
  std::sort(others.begin(), others.end());
  const auto text = [](uint64_t ns) {
    constexpr double kNsPerUs = 1000;
    return fmt::format("{:.1f} us", static_cast<double>(ns) / kNsPerUs);
  };
  std::string all = text(choice.estimates_ns[static_cast<size_t>(choice.algorithm)]);
  all += " by the cost model";
  for (const auto& [ns, algorithm] : others) {
    all += fmt::format("{} {} {}", &ns == &others.front().first ? ";" : ",", Name(algorithm),
                       text(ns));
  }
  return all;
}

}  // namespace

std::string AlgorithmNames() {
  std::vector<std::string_view> names;
  for (int a = 0; a < kAlgorithms; ++a) {
    const AlgorithmTraits& row = TraitsOf(static_cast<Algorithm>(a));
    for (const std::string_view name : {row.family, row.own}) {
      if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
      names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

AlgorithmFilter::AlgorithmFilter() {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    allowed_[static_cast<size_t>(c)] = Existing(static_cast<Collective>(c));
  }
}

Result<AlgorithmFilter> AlgorithmFilter::Parse(std::string_view given) {
  AlgorithmFilter filter;
  filter.text_ = Lower(WithoutBlanks(given));
  const std::string_view text = filter.text_;
  if (text.empty()) return filter;
  for (const std::string_view clause : Split(text, ';')) {
    const size_t colon = clause.find(':');
    Result<Set> set = ParseList(clause.substr(colon == clause.npos ? 0 : colon + 1), text);
    if (!set.ok()) return set.status();
    bool known = colon == clause.npos;
    for (int c = 0; c < kCollectiveKinds; ++c) {
      const auto collective = static_cast<Collective>(c);
      const Set usable = *set & Existing(collective);
      if (colon == clause.npos) {
        filter.allowed_[static_cast<size_t>(c)] = usable;
      } else if (clause.substr(0, colon) == Name(collective)) {
        known = true;
        if (usable.none()) {
          return InvalidArgument(
              fmt::format("algorithm list \"{}\": {} has none of these", clause, Name(collective)));
        }
        filter.allowed_[static_cast<size_t>(c)] = usable;
      }
    }
    if (!known) {
      return InvalidArgument(fmt::format("algorithm list \"{}\": no collective named \"{}\"", text,
                                         clause.substr(0, colon)));
    }
  }
  return filter;
}

bool FoldsInRankOrder(Collective collective, Algorithm algorithm) {
  if (!Reduces(collective)) return true;  // no sum, so any order is right
  return TraitsOf(algorithm).folds_in_rank_order;
}

Result<Choice> Choose(const TunerCall& call, const AlgorithmFilter& filter,
                      const TunerTable& table) {
  Set set;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    set.set(static_cast<size_t>(a),
            Admitted(call, filter, algorithm) &&
                (!TraitsOf(algorithm).several_hosts ||
                 HasSchedule(call.collective, algorithm, call.nranks, call.hosts)));
  }
  if (set.none()) return NothingLeft(call, filter);
  const Set fitting = set & Fitting(call);
  if (fitting.none()) return NothingFits(call, set);
  set = fitting;
  if (call.below_min_bytes) {
    const Set in_order = set & RankOrdered(call.collective);
    if (in_order.any()) set = in_order;
  }
  if (HostsOf(call) > 1) {
    Choice choice = ByModel(call, set, table.costs());
    if (set.count() == 1) choice.rule = TunerRule::kOnlyOne;
    choice.shortens = ShorteningPays(call, choice.algorithm, table.costs());
    return choice;
  }
  auto [algorithm, rule] = Preferred(call, set);
  if (!table.empty() && rule != TunerRule::kOnlyOne) {
    const std::optional<Algorithm> measured =
        table.Find(call.collective, call.nranks, call.compressed, call.bytes());
    if (measured && set.test(static_cast<size_t>(*measured))) {
      algorithm = *measured;
      rule = TunerRule::kTable;
    }
  }
  const bool side_one_shot = call.collective == Collective::kAllReduce &&
                             call.bytes() <= kSideOneShotBytes && call.nranks <= kMostDirectRanks;
  return Choice{algorithm, side_one_shot, rule};
}

std::string Explain(const TunerCall& call, const Choice& choice) {
  std::string why;
  switch (choice.rule) {
    case TunerRule::kTable:
      why = fmt::format("the fastest for {} bytes on {} ranks in the table of INCCL_TUNER_FILE",
                        call.bytes(), call.nranks);
      break;
    case TunerRule::kOnlyOne:
      if (call.route.group != 0) {
        why = fmt::format("{} runs on direct only", call.route.because);
        break;
      }
      why = call.reproducible && Reduces(call.collective)
                ? "nothing else that is admitted sums in rank order, which `reproducible` asks for"
                : "nothing else is admitted";
      break;
    case TunerRule::kOneStep:
      why = fmt::format("up to {} bytes and {} ranks one step costs less than the bytes it adds",
                        kOneShotBytes, kManyRanks);
      break;
    case TunerRule::kLogarithmic:
      why = fmt::format(
          "up to {} bytes on more than {} ranks its steps, which grow with the logarithm of the "
          "ranks, count for more than bytes",
          kOneShotBytes, kManyRanks);
      break;
    case TunerRule::kModel: why = Estimates(choice); break;
    case TunerRule::kInOrder:
      why = fmt::format("{} bytes: {}the first admitted of", call.bytes(),
                        call.bytes() <= kOneShotBytes
                            ? "what small calls prefer is not admitted or does not exist; "
                            : "");
      for (const AlgorithmTraits& row : kAlgorithmTable) {
        if (row.several_hosts) continue;
        why += fmt::format("{} {}", &row == kAlgorithmTable ? "" : ",", row.name);
      }
      break;
  }
  if (call.below_min_bytes && FoldsInRankOrder(call.collective, choice.algorithm)) {
    why += "; below the codec's min_bytes sums are taken in rank order";
  }
  if (HostsOf(call) > 1) why += fmt::format("; the ranks are on {} hosts", HostsOf(call));
  if (choice.shortens) why += "; ranks that have a processor each shorten their payloads";
  return fmt::format("{}: {}", Name(choice.algorithm), why);
}

}  // namespace inccl
