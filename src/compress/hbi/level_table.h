// SPDX-License-Identifier: Apache-2.0
//
// The multipliers for one number of levels, by scale code.
#ifndef INCCL_COMPRESS_HBI_LEVEL_TABLE_H_
#define INCCL_COMPRESS_HBI_LEVEL_TABLE_H_

namespace inccl::hbi {

// factor: fp32 of 65536 K / M; step: fp32 of M / K; average: fp32 of M / (K n). The steps are at
// most FLT_MAX. All are 0 for codes without elements to code; the steps of kPoison are NaN.
struct LevelTable {
  float factor[256];
  float step[256];
  float average[256];
  // A block is scaled for its own codes as if its largest magnitude were multiplied by this: fp32
  // of 2 K / (2 K + 1), since to nearest the last level is good for half a step beyond M; 1 where
  // the rounding is stochastic.
  float own;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_LEVEL_TABLE_H_
