// SPDX-License-Identifier: Apache-2.0
//
// One sum taken again and again with another rounding each time.
#ifndef INCCL_PERF_ACCURACY_STEPS_H_
#define INCCL_PERF_ACCURACY_STEPS_H_

#include <cstdint>

#include "base/status.h"
#include "perf/accuracy/measure.h"
#include "perf/accuracy/way.h"

namespace inccl::tools {

struct StepErrors {
  double bits = 0, vnmse = 0;  // means over the steps
  double vnmse_of_mean = 0;    // of the mean of the results: vnmse / steps if there is no bias
};

// Steps 1 to `steps`. `residual`: each rank feeds its errors back, so the mean is of what has
// arrived of all steps.
Result<StepErrors> OverSteps(const Way& way, const Vectors& inputs, uint64_t steps,
                             bool residual = false);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_STEPS_H_
