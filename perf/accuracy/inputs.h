// SPDX-License-Identifier: Apache-2.0
//
// The elements of all ranks of one data set.
#ifndef INCCL_PERF_ACCURACY_INPUTS_H_
#define INCCL_PERF_ACCURACY_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "perf/accuracy/measure.h"

namespace inccl::tools {

// `count` elements per rank of a data set of perf/support/datasets.h; 0: a file's own length, 2^17
// of the generators.
Result<Vectors> MakeInputs(const std::string& data, int nranks, uint64_t count, uint64_t seed);

// The layers that a file lists, in order: lines of a name without blanks, a number of elements and,
// of a matrix, the number of its columns; lines that begin with # are comments.
Result<std::vector<Layer>> ReadLayers(const std::string& path);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_INPUTS_H_
