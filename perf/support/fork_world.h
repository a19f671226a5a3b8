// SPDX-License-Identifier: Apache-2.0
//
// Ranks as forked processes of one program: `--ranks N`, no launcher needed.
#ifndef INCCL_PERF_SUPPORT_FORK_WORLD_H_
#define INCCL_PERF_SUPPORT_FORK_WORLD_H_

#include <functional>
#include <string>

#include "perf/support/world.h"

namespace inccl::perf {

// Forks `ranks` processes, runs `body` in each and waits for all of them. body's value is the exit
// code of its process; the largest of them is returned. A rank that is killed or ends with
// kExitFailed ends the run: the barriers of the others return an error, and those that still run
// 5 s later are killed. What went wrong is written to stderr, prefixed with `program`. The children
// die with the caller. Call it while the process has one thread.
int RunForked(const std::string& program, int ranks, const std::function<int(World&)>& body);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_FORK_WORLD_H_
