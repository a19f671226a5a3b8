// SPDX-License-Identifier: Apache-2.0
//
// Results against the oracle.
#ifndef INCCL_PERF_SUPPORT_VERIFY_H_
#define INCCL_PERF_SUPPORT_VERIFY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "perf/support/inputs.h"
#include "perf/support/oracle.h"

namespace inccl::perf {

// Sums over elements and ranks; trivially copyable, so that ranks can exchange it.
struct Accuracy {
  uint64_t wrong = 0;     // elements beyond what is allowed
  double max_error = 0;   // largest |result - oracle|; infinite for a result that should be finite
  double error2 = 0;      // sum of squares of result - oracle
  double reference2 = 0;  // sum of squares of the oracle

  void Add(const Accuracy& other);
  double RelativeL2() const;  // |result - oracle| / |oracle|; 0/0 is 0
  double Vnmse() const;       // |result - oracle|^2 / |oracle|^2
};

// Elements with infinite or NaN inputs, or where the type may overflow, count for `wrong` only.
//
// `result` holds `count` elements; its element i belongs to entry (first + i) mod period. Without
// `bound` the oracle's slack is what is allowed. With it (a lossy codec), |result - oracle| <=
// bound + the oracle's own error, and a superblock of 256 elements, counted from `result`, in which
// an input of any rank is infinite or NaN is all NaN, as hbi has it.
Accuracy VerifyReduction(const Oracle& oracle, uint64_t first, const void* result, uint64_t count,
                         std::optional<double> bound);

// For calls that only move data: every element whose bytes differ from `expected` is wrong.
Accuracy VerifyCopy(DataType type, const void* expected, const void* result, uint64_t count);

// An all-gather of a lossy codec, of one rank's elements of a float type: |result - expected| <=
// bound; a superblock of 256 elements in which `expected` is infinite or NaN is all NaN.
Accuracy VerifyLossyCopy(DataType type, const void* expected, const void* result, uint64_t count,
                         double bound);

// Guards behind buffers and results that must not be written.
inline constexpr std::byte kPoison{0xA5};
// Number of bytes that are not kPoison.
uint64_t CountDisturbed(std::span<const std::byte> bytes);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_VERIFY_H_
