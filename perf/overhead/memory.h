// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process takes, as the kernel counts it.
#ifndef INCCL_PERF_OVERHEAD_MEMORY_H_
#define INCCL_PERF_OVERHEAD_MEMORY_H_

#include <cstdint>
#include <string>

#include "base/status.h"

namespace inccl::perf {

// The bytes in use from the text of /proc/PID/smaps_rollup: its line "Pss:", in which a page that
// several processes share counts in parts. So the sum over the processes of a job is what the job
// takes. kSystemError if the text has no such line.
Result<uint64_t> ParseProportionalSize(const std::string& smaps_rollup);

// Of this process, now.
Result<uint64_t> ProportionalSize();

}  // namespace inccl::perf

#endif  // INCCL_PERF_OVERHEAD_MEMORY_H_
