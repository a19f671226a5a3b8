// SPDX-License-Identifier: Apache-2.0
#include "perf/support/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "perf/support/element.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kChunk = 4096;         // a multiple of kPoisonedBlock
constexpr uint64_t kPoisonedBlock = 256;  // elements that a codec poisons together

bool SameClass(double result, double expected) {
  return std::isnan(expected) ? std::isnan(result) : result == expected;
}

void AddFinite(double result, double expected, double allowed, Accuracy* accuracy) {
  const double error = std::fabs(result - expected);
  accuracy->reference2 += expected * expected;
  if (std::isfinite(error)) {
    accuracy->error2 += error * error;
    accuracy->max_error = std::max(accuracy->max_error, error);
    if (error > allowed) ++accuracy->wrong;
  } else {
    accuracy->error2 = accuracy->max_error = std::numeric_limits<double>::infinity();
    ++accuracy->wrong;
  }
}

// Whether the input of any rank is not finite in the block of `result` around element i.
bool BlockIsPoisoned(const Oracle& oracle, uint64_t first, uint64_t i, uint64_t count) {
  if (oracle.non_finite.empty()) return false;
  const uint64_t begin = i / kPoisonedBlock * kPoisonedBlock;
  for (uint64_t j = begin; j < std::min(count, begin + kPoisonedBlock); ++j) {
    if (oracle.non_finite[(first + j) % oracle.period]) return true;
  }
  return false;
}

Accuracy VerifyFloats(const Oracle& oracle, uint64_t first, const std::byte* result, uint64_t count,
                      std::optional<double> bound) {
  Accuracy accuracy;
  std::vector<double> values(kChunk);
  uint64_t entry = first % oracle.period;
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t now = std::min(kChunk, count - begin);
    DecodeFloats(oracle.type, result + begin * SizeOf(oracle.type), now, values.data());
    for (uint64_t i = 0; i < now; ++i) {
      const double expected = oracle.value[entry];
      const double slack = oracle.slack[entry];
      if (++entry == oracle.period) entry = 0;
      if (std::isinf(slack)) continue;
      if (bound && BlockIsPoisoned(oracle, first, begin + i, count)) {
        if (!std::isnan(values[i])) ++accuracy.wrong;
      } else if (!std::isfinite(expected)) {
        if (!SameClass(values[i], expected)) ++accuracy.wrong;
      } else {
        const double allowed = bound ? *bound + std::fabs(expected) * 0x1p-46 : slack;
        AddFinite(values[i], expected, allowed, &accuracy);
      }
    }
  }
  return accuracy;
}

Accuracy VerifyIntegers(const Oracle& oracle, uint64_t first, const std::byte* result,
                        uint64_t count) {
  Accuracy accuracy;
  const size_t bytes = SizeOf(oracle.type);
  const size_t shift = 64 - 8 * bytes;
  // Wide enough for exact differences of 64-bit integers.
  const auto number = [&](uint64_t bits) -> __int128 {
    if (!IsSigned(oracle.type)) return bits;
    return static_cast<int64_t>(bits << shift) >> shift;
  };
  uint64_t entry = first % oracle.period;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, result + i * bytes, bytes);
    const uint64_t expected = oracle.bits[entry];
    if (++entry == oracle.period) entry = 0;
    const auto reference = static_cast<double>(number(expected));
    accuracy.reference2 += reference * reference;
    if (bits == expected) continue;
    const double error = std::fabs(static_cast<double>(number(bits) - number(expected)));
    accuracy.error2 += error * error;
    accuracy.max_error = std::max(accuracy.max_error, error);
    ++accuracy.wrong;
  }
  return accuracy;
}

}  // namespace

void Accuracy::Add(const Accuracy& other) {
  wrong += other.wrong;
  max_error = std::max(max_error, other.max_error);
  error2 += other.error2;
  reference2 += other.reference2;
}

double Accuracy::Vnmse() const {
  if (error2 == 0) return 0;
  return error2 / reference2;
}

double Accuracy::RelativeL2() const { return std::sqrt(Vnmse()); }

Accuracy VerifyReduction(const Oracle& oracle, uint64_t first, const void* result, uint64_t count,
                         std::optional<double> bound) {
  const auto* bytes = static_cast<const std::byte*>(result);
  if (IsFloat(oracle.type)) return VerifyFloats(oracle, first, bytes, count, bound);
  return VerifyIntegers(oracle, first, bytes, count);
}

Accuracy VerifyCopy(DataType type, const void* expected, const void* result, uint64_t count) {
  Accuracy accuracy;
  const size_t bytes = SizeOf(type);
  const auto* a = static_cast<const std::byte*>(expected);
  const auto* b = static_cast<const std::byte*>(result);
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t now = std::min(kChunk, count - begin);
    if (std::memcmp(a + begin * bytes, b + begin * bytes, now * bytes) == 0) continue;
    for (uint64_t i = begin; i < begin + now; ++i) {
      if (std::memcmp(a + i * bytes, b + i * bytes, bytes) != 0) ++accuracy.wrong;
    }
  }
  return accuracy;
}

Accuracy VerifyLossyCopy(DataType type, const void* expected, const void* result, uint64_t count,
                         double bound) {
  Accuracy accuracy;
  const auto* a = static_cast<const std::byte*>(expected);
  const auto* b = static_cast<const std::byte*>(result);
  std::vector<double> want(kPoisonedBlock), got(kPoisonedBlock);
  for (uint64_t begin = 0; begin < count; begin += kPoisonedBlock) {
    const uint64_t now = std::min(kPoisonedBlock, count - begin);
    DecodeFloats(type, a + begin * SizeOf(type), now, want.data());
    DecodeFloats(type, b + begin * SizeOf(type), now, got.data());
    const auto end = want.begin() + static_cast<std::ptrdiff_t>(now);
    const bool poisoned =
        std::any_of(want.begin(), end, [](double x) { return !std::isfinite(x); });
    for (uint64_t i = 0; i < now; ++i) {
      if (!poisoned) {
        AddFinite(got[i], want[i], bound, &accuracy);
      } else if (!std::isnan(got[i])) {
        ++accuracy.wrong;
      }
    }
  }
  return accuracy;
}

uint64_t CountDisturbed(std::span<const std::byte> bytes) {
  uint64_t disturbed = 0;
  for (const std::byte b : bytes) disturbed += b != kPoison ? 1 : 0;
  return disturbed;
}

}  // namespace inccl::perf
