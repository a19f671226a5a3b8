// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/hull.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "compress/hbi/format.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kLevels[] = {1,   2,   3,   4,   5,    6,    7,    9,    11,  13,  15,
                                19,  23,  27,  31,  39,   47,   55,   63,   95,  127, 191,
                                255, 383, 511, 767, 1023, 1535, 2047, 3071, 4095};

// A choice of levels; the error is in units of M^2.
struct Choice {
  uint32_t cost;
  double error;
  uint32_t k, k2;
};

// The share of scale codes in `bits`, in eighths of a bit per element: an agreement costs 0.5 bits,
// the codes of a single rank cost 0.25.
constexpr int64_t kAgreement8 = 4, kOwnCodes8 = 2;

uint32_t GroupOf(Collective collective, int nranks, const Config& config) {
  return collective == Collective::kAllReduce ? config.GroupOf(nranks) : 0;
}

// The error of what has K2 levels over (M / K2)^2 / 12, roughly: the result, and with groups their
// sums, too. What is quantized after h contributions has a scale of about sqrt(0.66 h) M.
double ResultWeight(Collective collective, int nranks, const Config& config) {
  return (GroupOf(collective, nranks, config) == 0 ? 0.66 : 1.32) * nranks;
}

std::vector<Choice> AllChoices(Collective collective, int nranks, const Config& config) {
  const auto n = static_cast<uint32_t>(nranks);
  const uint32_t hops = Hops(collective, nranks);
  std::vector<Choice> choices;
  const double sum_weight = n + 1.0;  // systematic rounding makes n + 1 of n contributions
  const double result_weight = ResultWeight(collective, nranks, config);
  if (!config.unbiased) choices.push_back({0, n * 0.10, 0, 0});
  for (const uint32_t k : kLevels) {
    if (2 * n * k >= kFieldLimit) break;
    if (collective != Collective::kAllReduce) {
      choices.push_back({SumCost(collective, nranks, config, k, 0), n / (12.0 * k * k), k, 0});
      continue;
    }
    for (const uint32_t k2 : kLevels) {
      if (2 * n * k2 >= kFieldLimit) break;
      const uint32_t cost = SumCost(collective, nranks, config, k, k2);
      const double error = sum_weight / (12.0 * k * k) + result_weight / (12.0 * k2 * k2);
      choices.push_back({cost + hops * Width(1, k2), error, k, k2});
    }
  }
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.cost, a.error, a.k, a.k2) < std::tie(b.cost, b.error, b.k, b.k2);
  });
  return choices;
}

// True if b lies on or above the line from a to c.
bool IsAbove(const Choice& a, const Choice& b, const Choice& c) {
  return (b.error - a.error) * (static_cast<double>(c.cost) - a.cost) >=
         (c.error - a.error) * (static_cast<double>(b.cost) - a.cost);
}

// The smallest d, from -400 on, with slope * 2^(d / 2) >= 1.
int Threshold(double slope) {
  int d = -400;
  while (slope * std::ldexp(1.0, d >> 1) * ((d & 1) != 0 ? 1.4142135623730951 : 1.0) < 1.0) ++d;
  return d;
}

}  // namespace

uint32_t CodedHops(Collective collective, int nranks, const Config& config) {
  const uint32_t m = GroupOf(collective, nranks, config), n = static_cast<uint32_t>(nranks);
  if (m == 0) return 0;
  return n / m - 1 + (n % m > 1 ? 1 : 0);
}

uint32_t SumCost(Collective collective, int nranks, const Config& config, uint32_t k, uint32_t k2) {
  const uint32_t m = GroupOf(collective, nranks, config), hops = Hops(collective, nranks);
  if (m != 0) {
    const uint32_t coded = CodedHops(collective, nranks, config);
    return (hops - coded) * Width(1, k) + coded * Width(1, k2);
  }
  uint32_t cost = 0;
  for (uint32_t h = 1; h <= hops; ++h) {
    cost += Width(config.reference == Reference::kRing ? h : 1, k);
  }
  return cost;
}

int64_t BudgetOfSuperblock8(Collective collective, int nranks, const Config& config) {
  int64_t per_hop8 = config.bits8;
  switch (collective) {
    case Collective::kReduceScatter: per_hop8 -= kAgreement8; break;
    case Collective::kAllGather: per_hop8 -= kOwnCodes8; break;
    default: per_hop8 = 2 * per_hop8 - kAgreement8 - kOwnCodes8;
  }
  return Hops(collective, nranks) * per_hop8 - kOwnCodes8 * CodedHops(collective, nranks, config);
}

uint32_t LeastUnbiasedBits8(Collective collective, int nranks, const Config& config) {
  uint32_t cost = SumCost(collective, nranks, config, 1, 1);
  if (collective == Collective::kAllReduce) cost += Hops(collective, nranks) * Width(1, 1);
  Config least = config;
  least.bits8 = 1;
  while (BudgetOfSuperblock8(collective, nranks, least) < int64_t{8} * cost) ++least.bits8;
  return least.bits8;
}

std::vector<HullPoint> BuildHull(Collective collective, int nranks, const Config& config) {
  std::vector<Choice> hull;
  for (const Choice& choice : AllChoices(collective, nranks, config)) {
    if (!hull.empty() && choice.error >= hull.back().error) continue;
    if (!hull.empty() && choice.cost == hull.back().cost) hull.pop_back();
    while (hull.size() >= 2 && IsAbove(hull[hull.size() - 2], hull.back(), choice)) hull.pop_back();
    hull.push_back(choice);
  }
  std::vector<HullPoint> points;
  for (size_t i = 0; i < hull.size(); ++i) {
    HullPoint point{hull[i].cost, static_cast<uint16_t>(hull[i].k),
                    static_cast<uint16_t>(hull[i].k2), -(1 << 20)};
    if (i > 0) {
      const Choice& before = hull[i - 1];
      point.threshold = Threshold((before.error - hull[i].error) /
                                  (static_cast<double>(hull[i].cost) - before.cost));
    }
    points.push_back(point);
  }
  return points;
}

}  // namespace inccl::hbi
