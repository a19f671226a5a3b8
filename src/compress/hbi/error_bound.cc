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
  const uint8_t code = CodeOfMagnitude(std::bit_cast<uint32_t>(above));
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

double ErrorBound(const Planner& planner, const Point& point, uint8_t top, DataType type,
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

RangeSide SideOf(const Planner& planner, uint8_t top) {
  // Of the pieces of the scale whose steps are octaves, the codes of the smallest and largest M.
  constexpr uint8_t kFirst = 5, kLast = 247;
  if (top == kZeroCode) return RangeSide::kInside;
  const double summed = planner.requantizes() ? planner.contributions() : 1;
  if (top > kLast || summed * Magnitude(top) > Magnitude(kLast)) return RangeSide::kAbove;
  return top <= kFirst ? RangeSide::kBelow : RangeSide::kInside;
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
