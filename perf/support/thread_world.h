// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of this process: `--threads N`.
#ifndef INCCL_PERF_SUPPORT_THREAD_WORLD_H_
#define INCCL_PERF_SUPPORT_THREAD_WORLD_H_

#include <functional>
#include <string>

#include "perf/support/world.h"

namespace inccl::perf {

// Runs `body` in `ranks` threads and waits for all of them. body's value is its rank's exit code;
// the largest of them is returned. A rank that ends with kExitFailed or more ends the run: the
// barriers of the others return an error. A thread that hangs cannot be ended.
int RunThreads(const std::string& program, int ranks, const std::function<int(World&)>& body);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_THREAD_WORLD_H_
