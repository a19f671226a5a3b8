// SPDX-License-Identifier: Apache-2.0
//
// From measured times to the rows of the tuner's table.
#ifndef INCCL_TOOLS_TUNE_ROWS_H_
#define INCCL_TOOLS_TUNE_ROWS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "tuning/tuner.h"

namespace inccl::tools {

// What one size took.
struct TuneSample {
  uint64_t bytes = 0;  // of one vector, as the tuner sees it
  Algorithm by_default = Algorithm::kTwoShot;
  std::map<Algorithm, double> times;  // by_default among them
};

// The rows of one collective, number of ranks and kind (in `group`; its bytes and algorithm do not
// count) from samples in ascending order of bytes. Another algorithm than the default has to take
// at most 1 / (1 + margin) of its time, so that noise decides nothing. A row ends in the middle, by
// ratio, between the last size it is for and the next one.
std::vector<TunerRow> RowsOf(const TunerRow& group, const std::vector<TuneSample>& samples,
                             double margin);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_TUNE_ROWS_H_
