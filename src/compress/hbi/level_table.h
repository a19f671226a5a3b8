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
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_LEVEL_TABLE_H_
