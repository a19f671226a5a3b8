// SPDX-License-Identifier: Apache-2.0
//
// The multipliers for one number of levels, by scale code, and the choices of levels of a plan.
#ifndef INCCL_COMPRESS_HBI_LEVEL_TABLE_H_
#define INCCL_COMPRESS_HBI_LEVEL_TABLE_H_

#include <cstdint>

namespace inccl::hbi {

// A block is scaled for its own codes as if its largest magnitude were multiplied by this: fp32 of
// 2 K / (2 K + 1), since to nearest the last level is good for half a step beyond M; 1 where the
// rounding is stochastic.
inline float OwnScale(uint32_t k, bool unbiased) {
  const double levels = 2.0 * k;
  return k == 0 || unbiased ? 1.0f : static_cast<float>(levels / (levels + 1));
}

// factor: fp32 of 65536 K / M; step: fp32 of M / K; average: fp32 of M / (K n). The steps are at
// most FLT_MAX. All are 0 for codes without elements to code; the steps of kPoison are NaN.
struct LevelTable {
  float factor[256];
  float step[256];
  float average[256];
  // OwnScale(K, ...).
  float own;
};

// A choice of levels for a superblock. A plan consists of indices into Planner::points().
struct Point {
  uint32_t cost = 0;                   // eighths of a bit per element over the plan's hops
  uint16_t k = 0, k2 = 0;              // 0: not coded
  const LevelTable* sum = nullptr;     // table of k
  const LevelTable* result = nullptr;  // table of k2
  // Widths of fields in half-bits: of one contribution, of a complete sum, and of a result.
  uint8_t own_width = 0, sum_width = 0, result_width = 0;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_LEVEL_TABLE_H_
