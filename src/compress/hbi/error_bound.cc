// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/error_bound.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "compress/hbi/format.h"

namespace inccl::hbi {
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

// The error of one quantization by one rank, relative to its M. `steps` is 0.5 for rounding to
// nearest and 1 with a hash.
double SingleError(double steps, uint32_t k) { return (steps + FixedPointError(k)) / k + kDecode; }
double SingleError(const Planner& planner, uint32_t k) {
  return SingleError(planner.config().unbiased ? 1.0 : 0.5, k);
}

// The error of the decoded sum, relative to M.
double SumError(const Planner& planner, uint32_t k) {
  if (planner.collective() == Collective::kAllGather) return SingleError(planner, k);
  const double n = planner.nranks();
  return ((n + 1) / 2 + n * (0x1p-16 + FixedPointError(k))) / k + n * kDecode;
}

// A sum before it is quantized for the result.
struct PartialSum {
  double error = 0;    // bound on an element's error
  double largest = 0;  // bound on an element's magnitude
};

// `scale` returns the M for values of a magnitude, or infinity if there is none.
template <typename Scale>
PartialSum BoundOfRing(const Planner& planner, uint32_t k, double magnitude, const Scale& scale) {
  const auto n = static_cast<uint32_t>(planner.nranks());
  const double one = (1 + FixedPointError(k)) / k;
  double error = 0, present = magnitude;  // `present`: the M of the current group
  uint32_t inside = 0;
  for (uint32_t h = 1; h <= n; ++h) {
    if (inside == planner.group()) {
      const double sum = inside * present * (1 + kDecode) + magnitude;
      error += inside * present * kDecode + sum * 0x1p-23;
      if (h == n) return {error, sum * (1 + kDecode)};
      present = scale(sum * (1 + kDecode));
      inside = 0;
    }
    error += present * one;
    ++inside;
  }
  return {error + inside * present * kDecode, inside * present * (1 + kDecode)};
}

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
      const double own = scale(largest);
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
  if (planner.config().policy == Policy::kR) {
    return BoundOfRing(planner, point.k, magnitude, scale);
  }
  return BoundOfGroups(planner, point, magnitude, scale);
}

// The M of a block with this largest magnitude.
double ScaleAbove(double magnitude) {
  if (!(magnitude <= std::numeric_limits<float>::max())) return kInfinity;
  const float above = std::nextafter(static_cast<float>(magnitude), HUGE_VALF);
  const uint8_t code = CodeOfMagnitude(std::bit_cast<uint32_t>(above));
  return code == kPoison ? kInfinity : Magnitude(code);
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

double FinishBound(const UnfinishedBound& so_far) {
  double error = so_far.error, sum = so_far.sum;
  // The inverse rotation gives an element a sixteenth of each of 256 errors, and its magnitude is
  // below 16 times that of the rotated elements.
  if (so_far.rotated) {
    error = kSpread * error + kSpread * (sum + error) * kRotations + 0x1p-120;
    sum *= kSpread;
  }
  if (so_far.type == DataType::kFloat64) error += sum * 0x1p-24 + 0x1p-130;
  const TypeRounding rounding = RoundingOf(so_far.type);
  const double largest = (sum + error) / so_far.divisor;
  if (largest >= rounding.limit) return kInfinity;
  return error / so_far.divisor + largest * rounding.relative + rounding.absolute;
}

double ErrorBound(const Planner& planner, const Point& point, uint8_t top, DataType type,
                  ReduceOp op) {
  if (top == kZeroCode) return 0;
  const double n = planner.contributions(), magnitude = Magnitude(top);
  double error = n * magnitude;  // a dropped superblock has zeros instead of the sum
  if (point.k != 0) {
    const PartialSum sum = BoundOfSum(planner, point, magnitude, ScaleAbove);
    if (!(sum.largest <= std::numeric_limits<float>::max())) return kInfinity;
    error = sum.error;
    if (planner.requantizes()) error += ScaleAbove(sum.largest) * SingleError(planner, point.k2);
    if (!std::isfinite(error)) return kInfinity;
  }
  return FinishBound({.error = error,
                      .sum = n * magnitude,
                      .divisor = Reduces(planner.collective()) && op == ReduceOp::kAvg ? n : 1,
                      .rotated = planner.config().rht,
                      .type = type});
}

double QuantizationError(const Planner& planner, const PlanSummary& plan, bool nearest) {
  double worst = 0;
  for (size_t p = 1; p < planner.points().size(); ++p) {
    if (plan.top[p] == kZeroCode) continue;
    const uint32_t k = planner.points()[p].k;
    const double relative = k == 0 ? 1 : SingleError(nearest ? 0.5 : 1.0, k);
    worst = std::max(worst, Magnitude(plan.top[p]) * relative);
  }
  return worst;
}

double RelativeErrorBound(const Planner& planner, const Point& point) {
  if (point.k == 0) return 1;
  // M is at most a quarter octave above the magnitude, and the second M above the largest sum.
  const double quarter = std::exp2(0.25) * (1 + 0x1p-20), n = planner.contributions();
  const PartialSum sum =
      BoundOfSum(planner, point, quarter, [=](double largest) { return quarter * largest; });
  double error = sum.error / n;
  if (planner.requantizes()) {
    error += quarter * (1 + kDecode) * sum.largest / n * SingleError(planner, point.k2);
  }
  // A rotated element is at most 16 times the largest one of its superblock.
  if (planner.config().rht) error = kSpread * kSpread * (error + (1 + error) * kRotations);
  return error;
}

double RelativePartErrorBound(const Planner& sums, const Planner& results, int hops) {
  const double quarter = std::exp2(0.25) * (1 + 0x1p-20);
  const auto worst = [&](const Planner& planner, double steps) {
    double error = 0;
    for (const Point& point : planner.points().subspan(1)) {
      error = std::max(error, point.k == 0 ? 1 : quarter * SingleError(steps, point.k));
    }
    return error;
  };
  const double each = worst(sums, 1), last = worst(results, sums.config().unbiased ? 1 : 0.5);
  const double n = sums.nranks();
  double error = 0;
  if (sums.config().policy == Policy::kD) {
    error = n * each;
  } else {  // hop h codes a sum of h elements and the error so far
    for (int h = 1; h <= hops; ++h) error += (h + error) * each;
  }
  error += n * n * 0x1p-22;  // additions in fp32
  error = (error + (n + error) * last) / n;
  if (sums.config().rht) error = kSpread * kSpread * (error + (1 + error) * kRotations);
  return error;
}

}  // namespace inccl::hbi
