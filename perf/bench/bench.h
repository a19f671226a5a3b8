// SPDX-License-Identifier: Apache-2.0
//
// A benchmark program: options, launch, sweep, table, JSON. docs/perf-tools.md is the manual.
#ifndef INCCL_PERF_BENCH_BENCH_H_
#define INCCL_PERF_BENCH_BENCH_H_

#include "perf/support/operation.h"

namespace inccl::perf {

// The main function of the benchmark of one operation; returns an ExitCode.
int BenchMain(Operation operation, int argc, char** argv);

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_BENCH_H_
