// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/plan.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <limits>

#include "compress/hbi/format.h"
#include "compress/hbi/hull.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
namespace {

std::unique_ptr<LevelTable> MakeTable(uint32_t k, int nranks) {
  auto table = std::make_unique<LevelTable>();
  for (int code = 0; code < 256; ++code) {
    const bool coded = k > 0 && code > kZeroCode && code <= kLastCode;
    const double magnitude = coded ? Magnitude(code) : 0.0;
    const auto step = [&](double divisor) {
      if (code == kPoison) return std::numeric_limits<float>::quiet_NaN();
      return coded ? static_cast<float>(std::min(magnitude / divisor, double{FLT_MAX})) : 0.0f;
    };
    table->factor[code] = coded ? static_cast<float>(k * 65536.0 / magnitude) : 0.0f;
    table->step[code] = step(k);
    table->average[code] = step(k * static_cast<double>(nranks));
  }
  return table;
}

}  // namespace

const LevelTable* Planner::TableOf(uint32_t k) {
  for (size_t i = 0; i < table_levels_.size(); ++i) {
    if (table_levels_[i] == k) return tables_[i].get();
  }
  table_levels_.push_back(k);
  tables_.push_back(MakeTable(k, nranks_));
  return tables_.back().get();
}

Planner::Planner(Collective collective, int nranks, const Config& config)
    : collective_(collective), nranks_(nranks), config_(config) {
  points_.push_back({0, 0, 0, TableOf(0), TableOf(0)});
  if (config.bits8 == 0) {
    const uint32_t k2 = collective == Collective::kAllReduce ? config.k2 : 0;
    points_.push_back({0, static_cast<uint16_t>(config.k), static_cast<uint16_t>(k2),
                       TableOf(config.k), TableOf(k2)});
    return;
  }
  const std::vector<HullPoint> hull = BuildHull(collective, nranks, config);
  for (const HullPoint& point : hull) {
    points_.push_back({point.cost, point.k, point.k2, TableOf(point.k), TableOf(point.k2)});
  }
  by_distance_.resize(kDistances);
  cost_by_distance_.resize(kDistances);
  size_t taken = 0;
  for (int i = 0; i < kDistances; ++i) {
    while (taken + 1 < hull.size() && hull[taken + 1].threshold <= kFirstDistance + i) ++taken;
    by_distance_[static_cast<size_t>(i)] = static_cast<uint8_t>(taken + 1);
    cost_by_distance_[static_cast<size_t>(i)] = hull[taken].cost;
  }
}

void Planner::Plan(const uint8_t* codes, std::span<uint8_t> points, PlanSummary* summary) const {
  BestKernels().top_codes(codes, points.size(), points.data());
  // Four counters per code, because neighbours are often equal and would wait for each other.
  std::array<std::array<uint32_t, 4>, 256> counts{};
  for (size_t s = 0; s < points.size(); ++s) ++counts[points[s]][s % 4];
  Tops tops;
  for (size_t code = 1; code <= kLastCode; ++code) {
    const uint32_t count = counts[code][0] + counts[code][1] + counts[code][2] + counts[code][3];
    if (count != 0) tops.bins[tops.used++] = {static_cast<uint8_t>(code), count};
  }
  if (config_.bits8 != 0) return Spend(tops, points, summary);
  for (uint8_t& point : points) point = point == kZeroCode ? kDead : kDead + 1;
  uint8_t& top = summary->top[kDead + 1];
  if (tops.used != 0) top = std::max(top, tops.bins[tops.used - 1].code);
}

int64_t Planner::Budget8(size_t superblocks) const {
  return BudgetOfSuperblock8(collective_, nranks_, config_) * static_cast<int64_t>(superblocks);
}

int64_t Planner::Cost8(const Tops& tops, int delta) const {
  int64_t cost = 0;
  for (const Tops::Bin& bin : tops.span()) {
    const auto at = static_cast<size_t>(QuarterOctaves(bin.code) - delta - kFirstDistance);
    cost += int64_t{bin.superblocks} * cost_by_distance_[at];
  }
  return 8 * cost;
}

int Planner::FindDelta(const Tops& tops, int64_t budget8) const {
  int low = -kMaxDelta, high = kMaxDelta;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (Cost8(tops, middle) <= budget8) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Planner::Spend(const Tops& tops, std::span<uint8_t> points, PlanSummary* summary) const {
  const int64_t budget8 = Budget8(points.size());
  const int delta = FindDelta(tops, budget8);
  int64_t left8 = budget8 - Cost8(tops, delta);
  const auto step8 = [this](uint8_t point) {
    return 8 * (int64_t{points_[point + 1u].cost} - points_[point].cost);
  };
  std::array<uint8_t, 256> chosen{}, ahead{};  // by top code: point at delta, and at delta - 1
  std::array<uint32_t, 256> moved{};           // superblocks that get more than `chosen`
  int64_t smallest8 = budget8 + 1;             // cheapest step that the leftover can buy
  for (const Tops::Bin& bin : tops.span()) {
    chosen[bin.code] = Choose(QuarterOctaves(bin.code), delta);
    ahead[bin.code] = Choose(QuarterOctaves(bin.code), delta - 1);
    for (uint8_t p = chosen[bin.code]; p < ahead[bin.code]; ++p) {
      smallest8 = std::min(smallest8, step8(p));
    }
  }
  size_t s = 0;
  for (; s < points.size() && smallest8 <= left8; ++s) {  // spend the leftover in index order
    const uint8_t top = points[s];
    uint8_t point = chosen[top];
    while (point < ahead[top] && step8(point) <= left8) left8 -= step8(point++);
    points[s] = point;
    if (point == chosen[top]) continue;
    ++moved[top];
    summary->top[point] = std::max(summary->top[point], top);
  }
  for (; s < points.size(); ++s) points[s] = chosen[points[s]];
  for (const Tops::Bin& bin : tops.span()) {
    const uint8_t point = chosen[bin.code];
    if (moved[bin.code] == bin.superblocks) continue;
    summary->top[point] = std::max(summary->top[point], bin.code);
    if (points_[point].k == 0) summary->dropped += bin.superblocks - moved[bin.code];
  }
}

}  // namespace inccl::hbi
