// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/error_bound.h"

#include <cmath>
#include <limits>

#include "compress/hbi/format.h"

namespace inccl::hbi {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kDecode = 0x1p-22;  // two fp32 roundings, of the step and of the product, doubled

// A rotation keeps the length of a superblock's 256 elements, so that no element grows or errs more
// than 16 times as much as the largest one before. Its eight additions of fp32 round in each by at
// most 2^-24 of that length; two rotations are below 2^-20.
constexpr double kSpread = 16, kRotations = 0x1p-20;

// Of one code, in steps: the fixed point (half a unit of 2^-16) and two fp32 roundings of at most
// 65536 K.
double FixedPointError(uint32_t k) { return 0x1p-17 + k * 0x1p-22; }

// Of one quantization by one rank, over its M: to nearest half a step, with a hash a whole one.
double SingleError(const Planner& planner, uint32_t k) {
  const double steps = planner.config().unbiased ? 1.0 : 0.5;
  return (steps + FixedPointError(k)) / k + kDecode;
}

// Of the decoded sum, over M.
double SumError(const Planner& planner, uint32_t k) {
  if (planner.collective() == Collective::kAllGather) return SingleError(planner, k);
  const double n = planner.nranks();
  return ((n + 1) / 2 + n * (0x1p-16 + FixedPointError(k))) / k + n * kDecode;
}

// Relative rounding of a result in this type, and the smallest magnitude that overflows it.
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
  if (top == kZeroCode) return 0;
  const double n = planner.contributions();
  double magnitude = Magnitude(top);
  const bool rotated = planner.config().rht;
  double error = n * magnitude;  // dropped: zero instead of the sum
  if (point.k != 0) {
    error = magnitude * SumError(planner, point.k);
    const double largest = n * magnitude * (1 + kDecode);
    if (largest > std::numeric_limits<float>::max()) return kInfinity;
    if (planner.requantizes()) {
      const float above = std::nextafter(static_cast<float>(largest), HUGE_VALF);
      const uint8_t code = CodeOfMagnitude(std::bit_cast<uint32_t>(above));
      if (code == kPoison) return kInfinity;
      error += Magnitude(code) * SingleError(planner, point.k2);
    }
  }
  // Of what was rotated; back, an element takes a sixteenth of each of 256 errors, and its
  // magnitude is below 16 n M.
  if (rotated) {
    error = kSpread * error + kSpread * (n * magnitude + error) * kRotations + n * 0x1p-140;
    magnitude *= kSpread;
  }
  if (type == DataType::kFloat64) error += n * (magnitude * 0x1p-24 + 0x1p-150);
  const double divisor = Reduces(planner.collective()) && op == ReduceOp::kAvg ? n : 1;
  const TypeRounding rounding = RoundingOf(type);
  const double largest = (n * magnitude + error) / divisor;
  if (largest >= rounding.limit) return kInfinity;
  return error / divisor + largest * rounding.relative + rounding.absolute;
}

double RelativeErrorBound(const Planner& planner, const Point& point) {
  if (point.k == 0) return 1;
  // M is at most a quarter octave above the magnitude, the second M one above the largest sum.
  const double quarter = std::exp2(0.25) * (1 + 0x1p-20), n = planner.contributions();
  double error = quarter * SumError(planner, point.k) / n;
  if (planner.requantizes()) {
    error += quarter * quarter * (1 + 2 * kDecode) * SingleError(planner, point.k2);
  }
  // A rotated element is at most 16 times the largest one of the superblock.
  if (planner.config().rht) error = kSpread * kSpread * (error + (1 + error) * kRotations);
  return error;
}

}  // namespace inccl::hbi
