// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/plan.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <limits>

#include "compress/hbi/format.h"
#include "compress/hbi/hull.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

// M by code.
const std::array<double, 256>& Magnitudes() {
  static const std::array<double, 256> magnitudes = [] {
    std::array<double, 256> all{};
    for (int code = kZeroCode + 1; code <= kLastCode; ++code) {
      all[static_cast<size_t>(code)] = Magnitude(code);
    }
    return all;
  }();
  return magnitudes;
}

void FillTable(uint32_t k, int nranks, bool unbiased, LevelTable* table) {
  *table = {};
  const std::array<double, 256>& magnitudes = Magnitudes();
  if (k > 0) {
    const double levels = k, summed = levels * nranks;
    for (size_t code = kZeroCode + 1; code <= kLastCode; ++code) {
      const double magnitude = magnitudes[code];
      table->factor[code] = static_cast<float>(k * 65536.0 / magnitude);
      table->step[code] = static_cast<float>(std::min(magnitude / levels, double{FLT_MAX}));
      table->average[code] = static_cast<float>(std::min(magnitude / summed, double{FLT_MAX}));
    }
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

// The energies of two blocks, by their six bits of a side word.
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
  for (uint32_t below = word >> 8, pair = 0; pair < kBlocks / 2; ++pair, below >>= 6) {
    energy += kPairEnergies[below & 63];
  }
  return 2 * FifthOctaves(static_cast<int>(TopOf(word))) - kStepsAbove(energy);
}

const LevelTable* Planner::TableOf(uint32_t k) {
  const auto found = std::find(table_levels_.begin(), table_levels_.end(), k);
  const auto at = static_cast<size_t>(found - table_levels_.begin());
  if (found == table_levels_.end()) table_levels_.push_back(k);
  return &tables_[at];
}

void Planner::AddPoints(std::span<const HullPoint> choices) {
  const size_t points = choices.size() + 1;
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
  for (const HullPoint& choice : choices) add(choice.cost, choice.k, choice.k2);
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
    AddPoints({&fixed, 1});
    MakeTables();
    return;
  }
  const std::vector<HullPoint> hull = BuildHull(collective, nranks, config);
  AddPoints(hull);
  MakeTables(kDead);
  by_distance_.resize(kDistances);
  cost_by_distance_.resize(kDistances);
  const int64_t budget8 = Budget8(1);
  const auto distance_of = [](int threshold) {
    return std::clamp(threshold - kFirstDistance, 0, kDistances);
  };
  for (size_t i = 0; i < hull.size(); ++i) {  // the distances at which point i + 1 is taken
    const int first = i == 0 ? 0 : distance_of(hull[i].threshold);
    const int end = i + 1 == hull.size() ? kDistances : distance_of(hull[i + 1].threshold);
    std::fill(by_distance_.begin() + first, by_distance_.begin() + end,
              static_cast<uint8_t>(i + 1));
    std::fill(cost_by_distance_.begin() + first, cost_by_distance_.begin() + end, hull[i].cost);
    if (end > first && hull[i].cost <= budget8) affordable_ = end - 1;
  }
}

void Planner::Plan(const uint8_t* words, std::span<uint8_t> points, PlanSummary* summary,
                   Team* team) const {
  if (config_.bits8 != 0) {
    Energies energies;
    Count(words, points.size(), team, &energies);
    return Spend(words, energies, points, summary);
  }
  uint8_t& top = summary->top[kDead + 1];
  for (size_t s = 0; s < points.size(); ++s) {
    const uint32_t word = LoadWord(words, s);
    points[s] = IsLive(word) ? kDead + 1 : kDead;
    if (IsLive(word)) top = std::max(top, static_cast<uint8_t>(TopOf(word)));
  }
}

void Planner::Count(const uint8_t* words, size_t superblocks, Team* team, Energies* energies) {
  const uint32_t parts = team->PartsOf(superblocks, kLeastExponents);
  team->Run(parts, [&](uint32_t i) noexcept {
    for (size_t s = superblocks * i / parts, end = superblocks * (i + 1) / parts; s < end; ++s) {
      const uint32_t word = LoadWord(words, s);
      const bool live = IsLive(word) && TopOf(word) <= kLastCode;
      energies->exponents[s] =
          live ? static_cast<uint16_t>(EnergyExponent(word) - kFirstExponent) : Energies::kNotLive;
    }
  });
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

int64_t Planner::Budget8(size_t superblocks) const {
  return BudgetOfSuperblock8(collective_, nranks_, config_) * static_cast<int64_t>(superblocks);
}

int64_t Planner::Cost8(const Energies& energies, int delta) const {
  int64_t cost = 0;
  for (const Energies::Bin& bin : energies.span()) {
    cost += int64_t{bin.superblocks} * cost_by_distance_[Distance(bin.exponent, delta)];
  }
  return cost;
}

int Planner::FindDelta(const Energies& energies, size_t superblocks, int64_t budget8) const {
  int low = -kMaxDelta, high = kMaxDelta;
  const std::span<const Energies::Bin> bins = energies.span();
  if (!bins.empty() && affordable_ >= 0) {
    // The delta with which an exponent has the affordable distance.
    const auto bound = [this](const Energies::Bin& bin) {
      return std::clamp(bin.exponent + kFirstExponent - (affordable_ + kFirstDistance), -kMaxDelta,
                        kMaxDelta);
    };
    uint64_t live = 0;
    for (const Energies::Bin& bin : bins) live += bin.superblocks;
    high = bound(bins.back());
    if (live == superblocks) low = bound(bins.front());
  }
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (Cost8(energies, middle) <= budget8) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Planner::Spend(const uint8_t* words, const Energies& energies, std::span<uint8_t> points,
                    PlanSummary* summary) const {
  const int64_t budget8 = Budget8(points.size());
  const int delta = FindDelta(energies, points.size(), budget8);
  int64_t left8 = budget8 - Cost8(energies, delta);
  const auto step8 = [this](uint8_t point) {
    return int64_t{points_[point + 1u].cost} - points_[point].cost;
  };
  // In locals: `points` are bytes, whose stores could change any object for the compiler.
  const uint8_t* const by_exponent = by_distance_.data() + Distance(0, delta);
  std::array<uint32_t, 256> superblocks{};  // by point
  std::array<uint8_t, 256> top{};
  for (size_t s = 0; s < points.size(); ++s) {
    const uint16_t exponent = energies.exponents[s];
    points[s] = kDead;
    if (exponent == Energies::kNotLive) continue;
    uint8_t point = by_exponent[exponent];
    // Superblocks spend the leftover in index order. At delta - 1 the points are those of the next
    // exponent.
    const uint8_t ahead = by_exponent[exponent + 1];
    while (point < ahead && step8(point) <= left8) left8 -= step8(point++);
    points[s] = point;
    ++superblocks[point];
    top[point] = std::max(top[point], static_cast<uint8_t>(TopOf(LoadWord(words, s))));
  }
  for (size_t p = kDead + 1; p < points_.size(); ++p) {
    if (superblocks[p] == 0) continue;
    MakeTables(p);
    summary->top[p] = std::max(summary->top[p], top[p]);
    if (points_[p].k == 0) summary->dropped += superblocks[p];
  }
}

}  // namespace inccl::hbi
