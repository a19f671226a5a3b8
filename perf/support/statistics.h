// SPDX-License-Identifier: Apache-2.0
//
// Times of iterations, over ranks and over iterations.
#ifndef INCCL_PERF_SUPPORT_STATISTICS_H_
#define INCCL_PERF_SUPPORT_STATISTICS_H_

#include <cstddef>
#include <span>
#include <vector>

namespace inccl::perf {

// How the ranks' times of one iteration become one: the numbers of -a.
enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };

// all[r * iterations + i] is rank r's time of iteration i; returns one time for each iteration.
std::vector<double> CombineRanks(std::span<const double> all, size_t iterations, Average average);

// The middle value, or the mean of the two in the middle; 0 of nothing.
double Median(std::vector<double> values);

// The smallest value that at least a fraction p of the values does not exceed (nearest rank);
// 0 of nothing. Of fewer than 100 values the 0.99 percentile is the largest.
double Percentile(std::vector<double> values, double p);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_STATISTICS_H_
