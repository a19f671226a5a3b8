// SPDX-License-Identifier: Apache-2.0
//
// Selections and whole calls of reducers beside a copy of the same vector, in turns, on vectors
// larger than the caches.
#ifndef INCCL_PERF_KERNELS_REDUCER_CASES_H_
#define INCCL_PERF_KERNELS_REDUCER_CASES_H_

#include <cstdint>

#include "base/status.h"

namespace inccl::perf {

// Prints a table for vectors of `count` elements.
Status PrintReducers(uint64_t count);

}  // namespace inccl::perf

#endif  // INCCL_PERF_KERNELS_REDUCER_CASES_H_
