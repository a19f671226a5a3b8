// SPDX-License-Identifier: Apache-2.0
//
// Times every algorithm of a collective at several sizes, between the processes of one World.
#ifndef INCCL_TOOLS_TUNE_MEASURE_H_
#define INCCL_TOOLS_TUNE_MEASURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "perf/support/world.h"
#include "tools/tune/rows.h"
#include "topology/host_map.h"

namespace inccl::tools {

struct TuneOptions {
  std::vector<Collective> collectives;
  std::vector<uint64_t> sizes;  // bytes of the largest buffer of a call, ascending
  std::string codec;            // of compressed calls; "none": those are not measured
  uint64_t iterations = 15;
  double margin = 0.1;
  bool verbose = false;  // rank 0 writes every time to stderr
  // The hosts of the ranks, and the table with the constants of the cost model; nullptr: one host,
  // no table.
  const HostMap* hosts = nullptr;
  const TunerTable* table = nullptr;
};

// The samples of one collective and kind.
struct TuneSamples {
  Collective collective = Collective::kAllReduce;
  bool compressed = false;
  std::vector<TuneSample> samples;
};

// On every rank; all ranks call it. Collectives with one algorithm only have none.
Result<std::vector<TuneSamples>> MeasureSamples(perf::World& world, const TuneOptions& options);

// The rows of the table for as many ranks as `world` has, on every rank; all ranks call it.
Result<std::vector<TunerRow>> MeasureRows(perf::World& world, const TuneOptions& options);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_TUNE_MEASURE_H_
