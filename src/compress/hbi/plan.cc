// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/plan.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <limits>

#include "compress/hbi/format.h"
#include "compress/hbi/hull.h"

namespace inccl::hbi {
namespace {

// Of the two phases together, in eighths of a bit per element: agreement 0.5, own codes 0.25.
constexpr int64_t kCodesOverhead8 = 6;

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

uint8_t TopCode(const uint8_t* codes) {
  uint8_t top = 0;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const uint8_t code = codes[b] == kPoison ? kZeroCode : codes[b];
    top = std::max(top, code);
  }
  return top;
}

const LevelTable* Planner::TableOf(uint32_t k) {
  for (size_t i = 0; i < table_levels_.size(); ++i) {
    if (table_levels_[i] == k) return tables_[i].get();
  }
  table_levels_.push_back(k);
  tables_.push_back(MakeTable(k, nranks_));
  return tables_.back().get();
}

Planner::Planner(int nranks, const Config& config) : nranks_(nranks), config_(config) {
  points_.push_back({0, 0, 0, TableOf(0), TableOf(0)});
  if (config.bits8 == 0) {
    points_.push_back({0, static_cast<uint16_t>(config.k), static_cast<uint16_t>(config.k2),
                       TableOf(config.k), TableOf(config.k2)});
    return;
  }
  const std::vector<HullPoint> hull = BuildHull(nranks, config.reference);
  for (const HullPoint& point : hull) {
    points_.push_back({point.cost, point.k, point.k2, TableOf(point.k), TableOf(point.k2)});
  }
  by_distance_.resize(kDistances);
  size_t taken = 0;
  for (int i = 0; i < kDistances; ++i) {
    while (taken + 1 < hull.size() && hull[taken + 1].threshold <= kFirstDistance + i) ++taken;
    by_distance_[static_cast<size_t>(i)] = static_cast<uint8_t>(taken + 1);
  }
}

void Planner::Plan(const uint8_t* codes, std::span<uint8_t> points, PlanSummary* summary) const {
  std::array<uint32_t, 256> superblocks{};  // by top code
  for (size_t s = 0; s < points.size(); ++s) {
    const uint8_t top = TopCode(codes + s * kBlocks);
    points[s] = top;
    ++superblocks[top];
  }
  if (config_.bits8 != 0) return Spend(superblocks, points, summary);
  for (uint8_t& point : points) {
    const uint8_t top = point;
    point = top == kZeroCode ? kDead : kDead + 1;
    summary->top[point] = std::max(summary->top[point], top);
  }
}

void Planner::Spend(const std::array<uint32_t, 256>& superblocks, std::span<uint8_t> points,
                    PlanSummary* summary) const {
  struct Bin {
    int quarters;
    int64_t count;
  };
  std::array<Bin, kLastCode> bins;
  size_t used = 0;
  for (int code = 1; code <= kLastCode; ++code) {
    const auto count = superblocks[static_cast<size_t>(code)];
    if (count != 0) bins[used++] = {QuarterOctaves(code), count};
  }
  const auto total8 = [&](int delta) {
    int64_t sum = 0;
    for (size_t i = 0; i < used; ++i) {
      sum += bins[i].count * points_[Choose(bins[i].quarters, delta)].cost;
    }
    return 8 * sum;
  };
  const int64_t budget8 = (nranks_ - 1) * (2 * int64_t{config_.bits8} - kCodesOverhead8) *
                          static_cast<int64_t>(points.size());
  int delta = -kMaxDelta, high = kMaxDelta;  // the smallest delta that fits
  while (delta < high) {
    const int middle = delta + (high - delta) / 2;
    if (total8(middle) <= budget8) {
      high = middle;
    } else {
      delta = middle + 1;
    }
  }
  int64_t spent8 = total8(delta);
  std::array<uint8_t, 256> chosen{}, ahead{};  // by top code: at delta, and one below
  for (int code = 1; code <= kLastCode; ++code) {
    chosen[static_cast<size_t>(code)] = Choose(QuarterOctaves(code), delta);
    ahead[static_cast<size_t>(code)] = Choose(QuarterOctaves(code), delta - 1);
  }
  for (uint8_t& point : points) {  // leftovers, in index order
    const uint8_t top = point;
    point = chosen[top];
    while (point < ahead[top]) {
      const int64_t more8 = 8 * (int64_t{points_[point + 1u].cost} - points_[point].cost);
      if (spent8 + more8 > budget8) break;
      spent8 += more8;
      ++point;
    }
    summary->top[point] = std::max(summary->top[point], top);
    summary->dropped += point != kDead && points_[point].k == 0 ? 1 : 0;
  }
}

}  // namespace inccl::hbi
