// SPDX-License-Identifier: Apache-2.0
//
// Kernels, and the phases of a rank's work in an all-reduce, on data that lies in the second-level
// cache and on data larger than all caches, in turns; and what the second read of a window costs.
#ifndef INCCL_PERF_KERNELS_COLD_CASES_H_
#define INCCL_PERF_KERNELS_COLD_CASES_H_

#include <cstdint>

#include "base/status.h"

namespace inccl::perf {

// Prints the tables; cold vectors have `count` elements, whole windows.
Status PrintCold(uint64_t count);

}  // namespace inccl::perf

#endif  // INCCL_PERF_KERNELS_COLD_CASES_H_
