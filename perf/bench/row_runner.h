// SPDX-License-Identifier: Apache-2.0
//
// Measures and checks one row: the call out of place, then in place where that exists. All ranks
// run the same rows in the same order. docs/perf-tools.md has the rules of measurement.
#ifndef INCCL_PERF_BENCH_ROW_RUNNER_H_
#define INCCL_PERF_BENCH_ROW_RUNNER_H_

#include <cstdint>
#include <vector>

#include "perf/bench/baseline.h"
#include "perf/bench/row_buffers.h"
#include "perf/bench/row_check.h"
#include "perf/support/host.h"
#include "perf/support/row.h"
#include "perf/support/streaming.h"

namespace inccl::perf {

class RowRunner {
 public:
  // Allocates buffers for sizes up to options.max_bytes. gpu: where they are, nullptr: the host.
  // baseline: nullptr for none. Everything must outlive the runner.
  static Result<RowRunner> Create(World& world, const BenchOptions& options,
                                  const Communicator& communicator, const Inputs& inputs, Gpu* gpu,
                                  BaselineCalls* baseline, ProgressLine* progress);

  // Fills what was measured into a row.
  Result<Row> Run(const RowCase& row_case);

 private:
  RowRunner(World& world, const BenchOptions& options, const Communicator& communicator,
            const Inputs& inputs, BaselineCalls* baseline, ProgressLine* progress,
            RowBuffers buffers)
      : world_(&world),
        options_(&options),
        communicator_(&communicator),
        baseline_(baseline),
        progress_(progress),
        buffers_(std::move(buffers)),
        check_(world, inputs) {}

  Result<Measurement> Measure(bool in_place);
  void ShowProgress(bool in_place, const char* what, uint64_t number, uint64_t total);

  // The times of this rank, one for each iteration, microseconds.
  struct Times {
    std::vector<double> ours, baseline;
    std::vector<Interval> limit;
  };
  enum class Side { kOurs, kBaseline, kLimit };
  Result<Times> RunIterations(bool in_place);
  Result<double> TimeOurs(bool in_place);
  Result<double> TimeBaseline(bool in_place);
  Result<Interval> TimeLimit(bool in_place);
  Status RunSide(Side side, bool in_place, bool timed, Times* times);
  // How often, in all; the same on all ranks.
  struct Turns {
    uint64_t warmup, total;
  };
  Result<Turns> TurnsInTime(double seconds);
  Result<std::vector<double>> SpansOf(const std::vector<Interval>& mine);
  Status Summarize(const Times& times, Measurement* m);

  Status CallOurs(const BenchCall& call, ccl_compression_stats_t* stats) const;
  // A call that was only enqueued has ended, and well.
  Status Finish() const;

  Status AskWire(bool in_place, Measurement* m);
  Status Check(bool in_place, Measurement* m);
  Status CheckBaseline(bool in_place);
  Result<Accuracy> CheckOnce(bool in_place, uint64_t* digest);
  Status CompareDigests(uint64_t mine, Measurement* m);

  World* world_;
  const BenchOptions* options_;
  const Communicator* communicator_;
  BaselineCalls* baseline_;
  ProgressLine* progress_;
  RowBuffers buffers_;  // and the row that runs
  RowCheck check_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_ROW_RUNNER_H_
