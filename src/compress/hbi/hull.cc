// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/hull.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "compress/hbi/format.h"

namespace inccl::hbi {
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
  const auto half_bits = [&](uint32_t k, uint32_t k2) {
    return int64_t{SumHalfBits(collective, nranks, config, k, k2)};
  };
  std::vector<Choice> sums, results;
  for (const uint32_t k : UsefulLevels(limit, [&](uint32_t k) { return half_bits(k, least); })) {
    sums.push_back({4 * half_bits(k, least), SumError(k), k, 0});
  }
  if (collective == Collective::kAllReduce) {
    // What K and K2 cost are summands of what both cost.
    for (const uint32_t k2 : UsefulLevels(limit, [](uint32_t k2) { return Width(1, k2); })) {
      const int64_t more = half_bits(least, k2) - half_bits(least, least);
      results.push_back(
          {4 * (more + int64_t{hops} * Width(1, k2)), ResultError(group, n, k2), 0, k2});
    }
    sums = SumOfHulls(LowerHull(sums), LowerHull(results));
  }
  return LowerHull(sums);
}

// The smallest d >= 0 at which the step from a to b gains enough for what it costs.
int Threshold(const Choice& a, const Choice& b) {
  constexpr double kRoots[] = {1.0, 1.148698354997035, 1.3195079107728942, 1.515716566510398,
                               1.7411011265922482};
  const auto gain = static_cast<double>(a.error - b.error);
  const auto price = static_cast<double>(b.cost - a.cost);
  int d = std::max(0, 5 * (32 + std::ilogb(price) - std::ilogb(gain)));  // not above it
  while (gain * kRoots[d % 5] < std::ldexp(price, 33 - d / 5)) ++d;
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

int64_t BudgetOfSuperblock8(Collective collective, int nranks, const Config& config) {
  int64_t per_hop8 = config.bits8;
  switch (collective) {
    case Collective::kReduceScatter: per_hop8 -= kAgreement8; break;
    case Collective::kAllGather: per_hop8 -= kOwnWords8; break;
    default: per_hop8 = 2 * per_hop8 - kAgreement8 - kOwnWords8;
  }
  return Hops(collective, nranks) * per_hop8 - kOwnWords8 * CodedHops(collective, nranks, config);
}

uint32_t LeastBits8(Collective collective, int nranks, const Config& config) {
  uint32_t half_bits = SumHalfBits(collective, nranks, config, 1, 1);
  if (collective == Collective::kAllReduce) half_bits += Hops(collective, nranks) * Width(1, 1);
  Config least = config;
  least.bits8 = 1;
  while (BudgetOfSuperblock8(collective, nranks, least) < int64_t{4} * half_bits) ++least.bits8;
  return least.bits8;
}

Hull BuildHull(Collective collective, int nranks, const Config& config) {
  const std::vector<Choice> choices = AllChoices(collective, nranks, config);
  Hull hull;
  for (size_t i = 0; i < choices.size(); ++i) {
    hull.points.push_back({.cost = static_cast<uint32_t>(choices[i].cost),
                           .k = static_cast<uint16_t>(choices[i].k),
                           .k2 = static_cast<uint16_t>(choices[i].k2),
                           .threshold = i == 0 ? kAlways : Threshold(choices[i - 1], choices[i])});
  }
  // A point left of a hull leaves out some of the first ones.
  const Choice dropped{0, 6 * (int64_t{1} << 36) / 5, 0, 0};
  std::vector<Choice> more = choices;
  more.insert(more.begin(), dropped);
  hull.after_dropped = more.size() - LowerHull(more).size();
  hull.threshold_after_dropped = Threshold(dropped, choices[hull.after_dropped]);
  return hull;
}

}  // namespace inccl::hbi
