// SPDX-License-Identifier: Apache-2.0
//
// The threshold estimate of SIDCo (arXiv 2101.10761): magnitudes follow a generalized Pareto
// distribution, whose parameters come from mean and variance. The first stage aims at a quarter of
// the elements, each later one fits the exceedances of the one before. Here a stage knows how many
// elements the stages before have left, and aims at the rest of the way, so their errors do not add
// up and the number of stages need not adapt; and of a large vector the first stage fits a sample.
#ifndef INCCL_REDUCE_SIDCO_H_
#define INCCL_REDUCE_SIDCO_H_

#include <span>
#include <vector>

namespace inccl::sidco {

inline constexpr int kStages = 4;
inline constexpr double kFirstRatio = 0.25;

// The threshold of |x| above which about a fraction `ratio` in (0, 1] of the elements lies; NaN or
// 0 where the data allow no estimate. *scratch grows to what the first stage leaves.
double Threshold(std::span<const float> x, double ratio, std::vector<float>* scratch,
                 int stages = kStages);

}  // namespace inccl::sidco

#endif  // INCCL_REDUCE_SIDCO_H_
