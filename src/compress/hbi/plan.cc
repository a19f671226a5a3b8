// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/plan.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "compress/hbi/entropy.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {

double Magnitude(uint32_t code) {
  const int q = FifthOctaves(code);
  const int octave = (q + 5 * 128) / 5 - 128;  // rounded down
  return std::ldexp(double{std::bit_cast<float>(kFifthBits[q - 5 * octave])}, octave);
}

namespace {

constexpr uint32_t kLevels[] = {1,   2,   3,   4,   5,   6,   7,    9,    10,   11,   13,  15,
                                19,  22,  23,  27,  31,  39,  44,   47,   55,   63,   90,  95,
                                127, 191, 255, 383, 511, 767, 1023, 1535, 2047, 3071, 4095};

// A choice of levels; the error is in units of 2^-36 M^2 n / 12.
struct Choice {
  int64_t cost, error;
  uint32_t k, k2;
};

// The share of side words in `bits`, in eighths of a bit per element: an agreement costs 0.25 bits,
// the words of a single rank cost 0.125.
constexpr int64_t kAgreement8 = 2, kOwnWords8 = 1;

uint32_t GroupOf(Collective collective, int nranks, const Config& config) {
  return collective == Collective::kAllReduce ? config.GroupOf(nranks) : 0;
}

int64_t SumError(uint32_t k) { return (int64_t{1} << 36) / (int64_t{k} * k); }

// Of what has K2 levels: the result, and with groups their sums, too.
int64_t ResultError(uint32_t group, uint32_t n, uint32_t k2) {
  const int64_t steps = 2 * int64_t{k2} + 1;
  return (int64_t{1} << (group == 0 ? 39 : 40)) / (std::bit_width(n) * steps * steps);
}

// The levels below `limit` but for those that cost as much as the next ones, whose errors are less.
template <typename Cost>
std::vector<uint32_t> UsefulLevels(uint32_t limit, Cost cost) {
  std::vector<uint32_t> levels;
  levels.reserve(std::size(kLevels));
  for (const uint32_t k : kLevels) {
    if (k >= limit) break;
    if (!levels.empty() && cost(levels.back()) == cost(k)) levels.pop_back();
    levels.push_back(k);
  }
  return levels;
}

// True if b lies on or above the line from a to c. The products stay below 2^61.
bool IsAbove(const Choice& a, const Choice& b, const Choice& c) {
  return (b.error - a.error) * (c.cost - a.cost) >= (c.error - a.error) * (b.cost - a.cost);
}

// The lower hull of choices of ascending cost, as far as errors fall.
std::vector<Choice> LowerHull(std::span<const Choice> choices) {
  std::vector<Choice> hull;
  hull.reserve(choices.size());
  for (const Choice& choice : choices) {
    if (!hull.empty() && choice.error >= hull.back().error) continue;
    if (!hull.empty() && choice.cost == hull.back().cost) hull.pop_back();
    while (hull.size() >= 2 && IsAbove(hull[hull.size() - 2], hull.back(), choice)) hull.pop_back();
    hull.push_back(choice);
  }
  return hull;
}

// The hull of all sums of a choice of K and one of K2: it has the edges of both hulls, the steepest
// ones first.
std::vector<Choice> SumOfHulls(std::span<const Choice> sums, std::span<const Choice> results) {
  std::vector<Choice> hull;
  hull.reserve(sums.size() + results.size());
  size_t i = 0, j = 0;
  const auto add = [&] {
    hull.push_back({sums[i].cost + results[j].cost, sums[i].error + results[j].error, sums[i].k,
                    results[j].k2});
  };
  add();
  while (i + 1 < sums.size() || j + 1 < results.size()) {
    bool next_sum = j + 1 == results.size();
    if (!next_sum && i + 1 < sums.size()) {
      const Choice &a = sums[i], &b = sums[i + 1], &c = results[j], &d = results[j + 1];
      next_sum = (b.error - a.error) * (d.cost - c.cost) < (d.error - c.error) * (b.cost - a.cost);
    }
    ++(next_sum ? i : j);
    add();
  }
  return hull;
}

// The hull of all choices of levels.
std::vector<Choice> AllChoices(Collective collective, int nranks, const Config& config) {
  const auto n = static_cast<uint32_t>(nranks);
  const uint32_t hops = Hops(collective, nranks), group = GroupOf(collective, nranks, config);
  const uint32_t limit = (kFieldLimit + 2 * n - 1) / (2 * n), least = kLevels[0];
  const auto cost = [&](uint32_t k, uint32_t k2) {
    return CostOfSum(collective, nranks, config, k, k2);
  };
  std::vector<Choice> sums, results;
  for (const uint32_t k : UsefulLevels(limit, [&](uint32_t k) { return cost(k, least); })) {
    sums.push_back({cost(k, least), SumError(k), k, 0});
  }
  if (collective == Collective::kAllReduce) {
    // What K and K2 cost are summands of what both cost.
    const auto result = [&](uint32_t k2) { return CostOfResult(config, k2); };
    for (const uint32_t k2 : UsefulLevels(limit, result)) {
      const int64_t more = cost(least, k2) - cost(least, least);
      results.push_back({more + hops * result(k2), ResultError(group, n, k2), 0, k2});
    }
    sums = SumOfHulls(LowerHull(sums), LowerHull(results));
  }
  return LowerHull(sums);
}

// The smallest d >= 0 at which the step from a to b gains enough for what it costs.
int Threshold(const Choice& a, const Choice& b, const Config& config) {
  constexpr double kRoots[] = {1.0, 1.148698354997035, 1.3195079107728942, 1.515716566510398,
                               1.7411011265922482};
  const auto gain = static_cast<double>(a.error - b.error);
  const auto price = static_cast<double>(b.cost - a.cost);
  const int octaves = 36 - std::bit_width(PartsOfBit(config) / 2);
  int d = std::max(0, 5 * (octaves - 1 + std::ilogb(price) - std::ilogb(gain)));  // not above it
  while (gain * kRoots[d % 5] < std::ldexp(price, octaves - d / 5)) ++d;
  return d;
}

}  // namespace

uint32_t CodedHops(Collective collective, int nranks, const Config& config) {
  const uint32_t m = GroupOf(collective, nranks, config), n = static_cast<uint32_t>(nranks);
  if (m == 0) return 0;
  return n / m - 1 + (n % m > 1 ? 1 : 0);
}

uint32_t SumHalfBits(Collective collective, int nranks, const Config& config, uint32_t k,
                     uint32_t k2) {
  const uint32_t m = GroupOf(collective, nranks, config), hops = Hops(collective, nranks);
  if (m != 0) {
    const uint32_t coded = CodedHops(collective, nranks, config);
    return (hops - coded) * Width(1, k) + coded * Width(1, k2);
  }
  uint32_t half_bits = 0;
  for (uint32_t h = 1; h <= hops; ++h) {
    half_bits += Width(config.reference == Reference::kRing ? h : 1, k);
  }
  return half_bits;
}

uint32_t PartsOfBit(const Config& config) { return config.coding == Coding::kEntropy ? 64 : 8; }

int64_t CostOfSum(Collective collective, int nranks, const Config& config, uint32_t k,
                  uint32_t k2) {
  if (config.coding != Coding::kEntropy) {
    return int64_t{4} * SumHalfBits(collective, nranks, config, k, k2);
  }
  const uint32_t shape =
      Reduces(collective) ? ShapeOfSum(k, static_cast<uint32_t>(nranks)) : ShapeOfResult(k);
  return int64_t{Hops(collective, nranks)} * Cost64(k, shape);
}

int64_t CostOfResult(const Config& config, uint32_t k2) {
  if (config.coding != Coding::kEntropy) return int64_t{4} * Width(1, k2);
  return Cost64(k2, ShapeOfResult(k2));
}

int64_t BudgetOfSuperblock(Collective collective, int nranks, const Config& config) {
  int64_t per_hop8 = config.bits8;
  switch (collective) {
    case Collective::kReduceScatter: per_hop8 -= kAgreement8; break;
    case Collective::kAllGather: per_hop8 -= kOwnWords8; break;
    default: per_hop8 = 2 * per_hop8 - kAgreement8 - kOwnWords8;
  }
  const int64_t all8 =
      Hops(collective, nranks) * per_hop8 - kOwnWords8 * CodedHops(collective, nranks, config);
  return PartsOfBit(config) / 8 * all8;
}

uint32_t LeastBits8(Collective collective, int nranks, const Config& config) {
  int64_t cost = CostOfSum(collective, nranks, config, 1, 1);
  if (collective == Collective::kAllReduce) {
    cost += Hops(collective, nranks) * CostOfResult(config, 1);
  }
  Config least = config;
  least.bits8 = 1;
  while (BudgetOfSuperblock(collective, nranks, least) < cost) ++least.bits8;
  return least.bits8;
}

Hull BuildHull(Collective collective, int nranks, const Config& config) {
  const std::vector<Choice> choices = AllChoices(collective, nranks, config);
  Hull hull;
  for (size_t i = 0; i < choices.size(); ++i) {
    hull.points.push_back(
        {.cost = static_cast<uint32_t>(choices[i].cost),
         .k = static_cast<uint16_t>(choices[i].k),
         .k2 = static_cast<uint16_t>(choices[i].k2),
         .threshold = i == 0 ? kAlways : Threshold(choices[i - 1], choices[i], config)});
  }
  // A point left of a hull leaves out some of the first ones.
  const Choice dropped{0, 6 * (int64_t{1} << 36) / 5, 0, 0};
  std::vector<Choice> more = choices;
  more.insert(more.begin(), dropped);
  hull.after_dropped = more.size() - LowerHull(more).size();
  hull.threshold_after_dropped = Threshold(dropped, choices[hull.after_dropped], config);
  return hull;
}

namespace {

void FillTable(uint32_t k, int nranks, bool unbiased, LevelTable* table) {
  *table = {};
  if (k > 0) {
    constexpr uint32_t kFifths = kFifthBits.size();
    const double levels = k, summed = levels * nranks;
    const auto set = [&](uint32_t code) {
      const double magnitude = Magnitude(code);
      table->factor[code] = static_cast<float>(k * 65536.0 / magnitude);
      table->step[code] = static_cast<float>(std::min(magnitude / levels, double{FLT_MAX}));
      table->average[code] = static_cast<float>(std::min(magnitude / summed, double{FLT_MAX}));
    };
    for (uint32_t code = 1; code <= kFifths; ++code) set(code);
    // An octave on they are twice or half as large, exactly: all are normal numbers.
    for (uint32_t code = kFifths + 1; code < kLastCode; ++code) {
      table->factor[code] = table->factor[code - kFifths] / 2;
      table->step[code] = table->step[code - kFifths] * 2;
      table->average[code] = table->average[code - kFifths] * 2;
    }
    set(kLastCode);
  }
  table->step[kPoison] = table->average[kPoison] = std::numeric_limits<float>::quiet_NaN();
  table->own = OwnScale(k, unbiased);
}

// 2^16 * 2^(-2 d / 5): M^2 of a block d below the top, over that of the top.
constexpr std::array<uint32_t, 8> kEnergies = {65536, 49667, 37641, 28526,
                                               21619, 16384, 12417, 9410};
// 2^19 * 2^(-j / 5), j = 1 .. 9; 2^19 is eight blocks at the top.
constexpr std::array<uint32_t, 9> kSteps = {456419, 397336, 345901, 301124, 262144,
                                            228210, 198668, 172951, 150562};

// The energies of two blocks, by their six bits of a middle word.
constexpr std::array<uint32_t, 64> kPairEnergies = [] {
  std::array<uint32_t, 64> pairs{};
  for (uint32_t i = 0; i < 64; ++i) pairs[i] = kEnergies[i % 8] + kEnergies[i / 8];
  return pairs;
}();

// How many of kSteps are above an energy. A cell of energies has at most one of them inside.
struct StepsAbove {
  static constexpr uint32_t kCell = 4096, kCells = 8 * 65536 / kCell + 1;
  struct Cell {
    uint32_t step = 0;  // the one inside, or 0
    int above = 0;      // of those beyond the cell
  };
  std::array<Cell, kCells> cells{};
  constexpr StepsAbove() {
    for (uint32_t c = 0; c < kCells; ++c) {
      for (const uint32_t step : kSteps) {
        if (step / kCell == c) cells[c].step = step;
        if (step / kCell > c) ++cells[c].above;
      }
    }
  }
  int operator()(uint32_t energy) const {
    const Cell& cell = cells[energy / kCell];
    return cell.above + (energy < cell.step ? 1 : 0);
  }
};
constexpr StepsAbove kStepsAbove;

// Superblocks whose energies are the smallest part that pays on a thread of its own.
constexpr uint64_t kLeastExponents = 512;

}  // namespace

int EnergyExponent(uint32_t word) {
  uint32_t energy = 0;
  if (IsMiddle(word)) {
    for (uint32_t below = word >> 8, pair = 0; pair < kBlocks / 2; ++pair, below >>= 6) {
      energy += kPairEnergies[below & 63];
    }
  } else {
    for (uint32_t b = 0; b < kBlocks; ++b) energy += kEnergies[BelowOf(word, b)];
  }
  return 2 * FifthOctaves(TopOf(word)) - kStepsAbove(energy);
}

const LevelTable* Planner::TableOf(uint32_t k) {
  const auto found = std::find(table_levels_.begin(), table_levels_.end(), k);
  const auto at = static_cast<size_t>(found - table_levels_.begin());
  if (found == table_levels_.end()) table_levels_.push_back(k);
  return &tables_[at];
}

void Planner::AddPoints(const Hull& hull, bool drops) {
  const size_t points = hull.points.size() + 2;
  tables_ = std::make_unique_for_overwrite<LevelTable[]>(2 * points);  // touched as they are made
  ready_ = std::make_unique<std::atomic<bool>[]>(points);
  const auto add = [this](uint32_t cost, uint32_t k, uint32_t k2) {
    points_.push_back({.cost = cost,
                       .k = static_cast<uint16_t>(k),
                       .k2 = static_cast<uint16_t>(k2),
                       .sum = TableOf(k),
                       .result = TableOf(k2),
                       .own_width = static_cast<uint8_t>(Width(1, k)),
                       .sum_width = static_cast<uint8_t>(Width(contributions(), k)),
                       .result_width = static_cast<uint8_t>(Width(1, k2))});
  };
  add(0, 0, 0);
  if (drops) add(0, 0, 0);
  for (const HullPoint& choice : hull.points) add(choice.cost, choice.k, choice.k2);
  const MutexLock lock(&mutex_);
  made_.resize(2 * points);
}

void Planner::MakeTable(const LevelTable* table) const {
  const auto at = static_cast<size_t>(table - tables_.get());
  if (made_[at]) return;
  FillTable(table_levels_[at], nranks_, config_.unbiased, &tables_[at]);
  made_[at] = true;
}

void Planner::MakeTables(size_t point) const {
  if (ready_[point].load(std::memory_order_acquire)) return;
  const MutexLock lock(&mutex_);
  if (ready_[point].load(std::memory_order_relaxed)) return;
  MakeTable(points_[point].sum);
  MakeTable(points_[point].result);
  ready_[point].store(true, std::memory_order_release);
}

void Planner::MakeTables() const {
  for (size_t point = 0; point < points_.size(); ++point) MakeTables(point);
}

Planner::Planner(Collective collective, int nranks, const Config& config)
    : collective_(collective), nranks_(nranks), config_(config) {
  if (config.bits8 == 0) {
    const uint32_t k2 = collective == Collective::kAllReduce ? config.k2 : 0;
    const HullPoint fixed{.k = static_cast<uint16_t>(config.k), .k2 = static_cast<uint16_t>(k2)};
    AddPoints({.points = {fixed}}, false);
    MakeTables();
    return;
  }
  const Hull hull = BuildHull(collective, nranks, config);
  AddPoints(hull, !config.unbiased);
  MakeTables(kDead);
  MakeRules(hull);
}

Planner::Rule Planner::MakeRule(std::vector<Rule::Step> steps, std::span<const int> thresholds,
                                int first_exponent, int exponents, int first_delta,
                                int last_delta) const {
  Rule rule;
  rule.steps = std::move(steps);
  rule.first_delta = first_delta;
  rule.last_delta = last_delta;
  const int distances = exponents + last_delta - first_delta + 1;
  rule.by_distance.resize(static_cast<size_t>(distances));
  rule.cost_by_distance.resize(static_cast<size_t>(distances));
  for (size_t i = 0; i < rule.steps.size(); ++i) {
    const int first = std::clamp(thresholds[i] - first_exponent + last_delta, 0, distances);
    std::fill(rule.by_distance.begin() + first, rule.by_distance.end(), static_cast<uint8_t>(i));
    std::fill(rule.cost_by_distance.begin() + first, rule.cost_by_distance.end(),
              rule.steps[i].cost);
  }
  const auto& costs = rule.cost_by_distance;
  const auto above = std::upper_bound(costs.begin(), costs.end(), Budget(1));
  rule.affordable = static_cast<int>(above - costs.begin()) - 1;
  return rule;
}

void Planner::MakeRules(const Hull& hull) {
  const size_t points = hull.points.size(), first_point = points_.size() - points;
  std::vector<Rule::Step> steps;
  std::vector<int> thresholds;
  const auto add = [&](size_t i, int threshold) {
    steps.push_back({hull.points[i].cost, static_cast<uint8_t>(first_point + i)});
    thresholds.push_back(threshold);
  };
  const int64_t budget = Budget(1);
  if (config_.levels == Levels::kEven) {
    for (size_t i = 0; i < points; ++i) add(i, kEvenScale * hull.points[i].threshold);
    even_ = MakeRule(steps, thresholds, -kEvenDepth, kEvenDepth + 1,
                     -kEvenDepth - std::max(0, thresholds.back()), 1);
    if (hull.points.front().cost <= budget) {
      // Where all superblocks are live, and all but a few have the largest energy, these have the
      // fewest levels.
      size_t over = 1;
      while (over < points && hull.points[over].cost <= budget) ++over;
      first_choice_ = points_.size() - 1;
      if (over < points) {
        const int least = thresholds[over] - 1 - kEvenDepth;
        while (over > 0 && thresholds[over] > least) --over;
        first_choice_ = first_point + over;
      }
      return;  // every window has even levels
    }
    steps.clear();
    thresholds.clear();
  }
  size_t i = 0;
  if (!config_.unbiased) {
    steps.push_back({0, static_cast<uint8_t>(first_point - 1)});
    thresholds.push_back(kAlways);
    i = hull.after_dropped;
    add(i++, hull.threshold_after_dropped);
  }
  for (; i < points; ++i) add(i, hull.points[i].threshold);
  energy_ = MakeRule(steps, thresholds, kFirstExponent, kExponents, -kMaxDelta, kMaxDelta);
}

void Planner::Plan(const uint8_t* words, std::span<uint8_t> points, PlanSummary* summary,
                   Team* team) const {
  if (config_.bits8 != 0) {
    Energies energies;
    Read(words, points.size(), team, &energies);
    const Rule& rule = RuleFor(points.size(), &energies);
    Count(points.size(), &energies);
    return Spend(words, rule, energies, points, summary);
  }
  uint16_t& top = summary->top[kDead + 1];
  for (size_t s = 0; s < points.size(); ++s) {
    const uint32_t word = LoadWord(words, s);
    points[s] = IsLive(word) ? kDead + 1 : kDead;
    if (IsLive(word)) top = std::max(top, static_cast<uint16_t>(TopOf(word)));
  }
}

void Planner::Read(const uint8_t* words, size_t superblocks, Team* team, Energies* energies) {
  const uint32_t parts = team->PartsOf(superblocks, kLeastExponents);
  team->Run(parts, [&](uint32_t i) noexcept {
    for (size_t s = superblocks * i / parts, end = superblocks * (i + 1) / parts; s < end; ++s) {
      const uint32_t word = LoadWord(words, s);
      const bool live = IsLive(word) && 0 < TopOf(word) && TopOf(word) <= kLastCode;
      energies->exponents[s] =
          live ? static_cast<uint16_t>(EnergyExponent(word) - kFirstExponent) : Energies::kNotLive;
    }
  });
}

const Planner::Rule& Planner::RuleFor(size_t superblocks, Energies* energies) const {
  if (even_.steps.empty()) return energy_;
  const std::span<uint16_t> exponents{energies->exponents.data(), superblocks};
  int64_t live = 0;
  uint16_t top = 0;
  for (const uint16_t exponent : exponents) {
    if (exponent == Energies::kNotLive) continue;
    ++live;
    top = std::max(top, exponent);
  }
  if (even_.steps.front().cost * live > Budget(superblocks)) return energy_;
  for (uint16_t& exponent : exponents) {
    if (exponent == Energies::kNotLive) continue;
    exponent = static_cast<uint16_t>(std::max(0, exponent + kEvenDepth - top));
  }
  return even_;
}

void Planner::Count(size_t superblocks, Energies* energies) {
  const std::span<const uint16_t> exponents{energies->exponents.data(), superblocks};
  uint16_t low = Energies::kNotLive, after = 0;  // [low, after)
  for (const uint16_t exponent : exponents) {
    low = std::min(low, exponent);
    after = std::max<uint16_t>(after, static_cast<uint16_t>(exponent + 1));  // 0 if not live
  }
  if (low >= after) return;
  std::array<uint32_t, kExponents> counts;  // from low to `after`; a window needs few of them
  std::fill(counts.begin() + low, counts.begin() + after, 0);
  for (const uint16_t exponent : exponents) {
    if (exponent != Energies::kNotLive) ++counts[exponent];
  }
  for (uint16_t e = low; e < after; ++e) {
    if (counts[e] != 0) energies->bins[energies->used++] = {e, counts[e]};
  }
}

int64_t Planner::Budget(size_t superblocks) const {
  return BudgetOfSuperblock(collective_, nranks_, config_) * static_cast<int64_t>(superblocks);
}

int64_t Planner::Cost(const Rule& rule, const Energies& energies, int delta) {
  int64_t cost = 0;
  for (const Energies::Bin& bin : energies.span()) {
    cost += int64_t{bin.superblocks} * rule.cost_by_distance[rule.Distance(bin.exponent, delta)];
  }
  return cost;
}

int Planner::FindDelta(const Rule& rule, const Energies& energies, size_t superblocks,
                       int64_t budget) {
  int low = rule.first_delta, high = rule.last_delta;
  const std::span<const Energies::Bin> bins = energies.span();
  if (!bins.empty() && rule.affordable >= 0) {
    // The delta with which an exponent has the affordable distance.
    const auto bound = [&rule](const Energies::Bin& bin) {
      return std::clamp(bin.exponent + rule.last_delta - rule.affordable, rule.first_delta,
                        rule.last_delta);
    };
    uint64_t live = 0;
    for (const Energies::Bin& bin : bins) live += bin.superblocks;
    high = bound(bins.back());
    if (live == superblocks) low = bound(bins.front());
  }
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (Cost(rule, energies, middle) <= budget) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Planner::Spend(const uint8_t* words, const Rule& rule, const Energies& energies,
                    std::span<uint8_t> points, PlanSummary* summary) const {
  const int64_t budget = Budget(points.size());
  const int delta = FindDelta(rule, energies, points.size(), budget);
  int64_t left8 = budget - Cost(rule, energies, delta);
  // In locals: `points` are bytes, whose stores could change any object for the compiler.
  const uint8_t* const by_exponent = rule.by_distance.data() + rule.Distance(0, delta);
  const Rule::Step* const steps = rule.steps.data();
  std::array<uint32_t, 256> superblocks{};  // by point
  std::array<uint16_t, 256> top{};
  for (size_t s = 0; s < points.size(); ++s) {
    const uint16_t exponent = energies.exponents[s];
    points[s] = kDead;
    if (exponent == Energies::kNotLive) continue;
    size_t step = by_exponent[exponent];
    // Superblocks spend the leftover in index order. At delta - 1 the steps are those of the next
    // exponent.
    for (const size_t ahead = by_exponent[exponent + 1]; step < ahead; ++step) {
      const int64_t more8 = int64_t{steps[step + 1].cost} - steps[step].cost;
      if (more8 > left8) break;
      left8 -= more8;
    }
    const uint8_t point = steps[step].point;
    points[s] = point;
    ++superblocks[point];
    top[point] = std::max(top[point], static_cast<uint16_t>(TopOf(LoadWord(words, s))));
  }
  for (size_t p = kDead + 1; p < points_.size(); ++p) {
    if (superblocks[p] == 0) continue;
    MakeTables(p);
    summary->top[p] = std::max(summary->top[p], top[p]);
    if (points_[p].k == 0) summary->dropped += superblocks[p];
  }
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kDecode = 0x1p-22;  // twice two fp32 roundings: of the step and of the product

// A rotation keeps the length of a superblock's 256 elements, so values and errors of an element
// grow by a factor of at most 16 over the largest one before. Each of its eight additions rounds by
// at most 2^-24 of that length; two rotations stay below 2^-20.
constexpr double kSpread = 16, kRotations = 0x1p-20;

// The arithmetic error of one code in steps: half a unit (2^-16) of the fixed point, and two fp32
// roundings of at most 65536 K.
double FixedPointError(uint32_t k) { return 0x1p-17 + k * 0x1p-22; }

// Of one quantization by one rank, over its M: to nearest half a step, with a hash a whole one.
double SingleError(const Planner& planner, uint32_t k) {
  const double steps = planner.config().unbiased ? 1.0 : 0.5;
  return (steps + FixedPointError(k)) / k + kDecode;
}

// The error of the decoded sum, relative to M.
double SumError(const Planner& planner, uint32_t k) {
  if (planner.collective() == Collective::kAllGather) return SingleError(planner, k);
  const double n = planner.nranks();
  const double offsets =
      planner.config().unbiased ? (n + 1) / 2 + n * 0x1p-16 : n / 2 + n * 0x1p-15;
  return (offsets + n * FixedPointError(k)) / k + n * kDecode;
}

// A sum before it is quantized for the result.
struct PartialSum {
  double error = 0;    // bound on an element's error
  double largest = 0;  // bound on an element's magnitude
};

// `scale` returns the M for values of a magnitude that are quantized anew, or infinity if there is
// none.
template <typename Scale>
PartialSum BoundOfGroups(const Planner& planner, const Point& point, double magnitude,
                         const Scale& scale) {
  PartialSum sum{magnitude * SumError(planner, point.k), 0};
  uint32_t groups = 0;
  for (uint32_t left = planner.contributions(); left != 0; ++groups) {
    const uint32_t members = std::min(left, planner.group());
    left -= members;
    double largest = members * magnitude * (1 + kDecode);
    if (members > 1) {
      const double own = std::max(magnitude, scale(largest));
      sum.error += own * SingleError(planner, point.k2);
      largest = own * (1 + kDecode);
    }
    sum.largest += largest;
  }
  sum.error += groups * sum.largest * 0x1p-23;
  sum.largest *= 1 + kDecode;
  return sum;
}

template <typename Scale>
PartialSum BoundOfSum(const Planner& planner, const Point& point, double magnitude,
                      const Scale& scale) {
  if (planner.group() == 0) {
    return {magnitude * SumError(planner, point.k),
            planner.contributions() * magnitude * (1 + kDecode)};
  }
  return BoundOfGroups(planner, point, magnitude, scale);
}

// The M of a block with this largest magnitude.
double ScaleAbove(double magnitude) {
  if (!(magnitude <= std::numeric_limits<float>::max())) return kInfinity;
  const float above = std::nextafter(static_cast<float>(magnitude), HUGE_VALF);
  const uint32_t code = CodeOfMagnitude(std::bit_cast<uint32_t>(above));
  return code == kPoison ? kInfinity : Magnitude(code);
}

// The largest magnitude of an element that is zero where it is coded: fp32 is the code's type, and
// a sixteenth of the sum of rotated elements may be below it.
double Vanishing(const Planner& planner, DataType type) {
  return (type == DataType::kFloat64 ? 0x1p-150 : 0) +
         (planner.config().rht ? kSpread * 0x1p-150 : 0);
}

// The rounding error of a result in some type, and the smallest magnitude that overflows the type.
struct TypeRounding {
  double relative, absolute, limit;
};

TypeRounding RoundingOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {0x1p-11, 0x1p-25, 65520.0};
    case DataType::kBfloat16: return {0x1p-8, 0x1p-134, 0x1p128};
    default: return {0, 0, 0x1p128};
  }
}

}  // namespace

double ErrorBound(const Planner& planner, const Point& point, uint32_t top, DataType type,
                  ReduceOp op) {
  if (top == kPoison) return kInfinity;
  const double n = planner.contributions();
  const double divisor = Reduces(planner.collective()) && op == ReduceOp::kAvg ? n : 1;
  if (top == kZeroCode) return n * Vanishing(planner, type) / divisor;
  const double magnitude = Magnitude(top);
  double sum_limit = n * magnitude;
  double error = sum_limit;  // dropped: zero instead of the sum
  if (point.k != 0) {
    const float own = OwnScale(point.k2, planner.config().unbiased);
    const auto scale = [own](double largest) { return ScaleAbove(largest * own); };
    const PartialSum sum = BoundOfSum(planner, point, magnitude, scale);
    if (!(sum.largest <= std::numeric_limits<float>::max())) return kInfinity;
    error = sum.error;
    if (planner.requantizes()) error += scale(sum.largest) * SingleError(planner, point.k2);
    if (!std::isfinite(error)) return kInfinity;
  }
  // Back from a rotation an element takes a sixteenth of each of 256 errors, and its magnitude is
  // below 16 times that of the rotated ones.
  if (planner.config().rht) {
    // It adds up 256 of them before it divides.
    if (kSpread * kSpread * (sum_limit + error) >= 0x1p128) return kInfinity;
    error = kSpread * error + kSpread * (sum_limit + error) * kRotations + 0x1p-120;
    sum_limit *= kSpread;
  }
  if (type == DataType::kFloat64) error += sum_limit * 0x1p-24 + 0x1p-130;
  const TypeRounding rounding = RoundingOf(type);
  const double largest = (sum_limit + error) / divisor;
  if (largest >= rounding.limit) return kInfinity;
  return error / divisor + largest * rounding.relative + rounding.absolute;
}

double RelativeErrorBound(const Planner& planner, const Point& point) {
  if (point.k == 0) return 1;
  // M is at most a fifth of an octave above the magnitude, and the second M above what it covers of
  // the largest sum.
  const double fifth = std::exp2(0.2) * (1 + 0x1p-20), n = planner.contributions();
  const float own = OwnScale(point.k2, planner.config().unbiased);
  const auto scale = [&](double largest) { return fifth * largest * own; };
  const PartialSum sum = BoundOfSum(planner, point, fifth, scale);
  double error = sum.error / n;
  if (planner.requantizes()) {
    error += (1 + kDecode) * scale(sum.largest) / n * SingleError(planner, point.k2);
  }
  // A rotated element is at most 16 times the largest one of its superblock.
  if (planner.config().rht) error = kSpread * kSpread * (error + (1 + error) * kRotations);
  return error;
}

}  // namespace inccl::hbi
