// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/bench.h"

int main(int argc, char** argv) {
  return inccl::perf::BenchMain(inccl::perf::Operation::kScatter, argc, argv);
}
