// SPDX-License-Identifier: Apache-2.0
//
// Measures and checks one row: the call out of place, then in place where that exists. All ranks
// run the same rows in the same order. docs/perf-tools.md has the rules of measurement.
#ifndef INCCL_PERF_BENCH_ROW_RUNNER_H_
#define INCCL_PERF_BENCH_ROW_RUNNER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "perf/bench/buffers.h"
#include "perf/bench/communicator.h"
#include "perf/support/host.h"
#include "perf/support/inputs.h"
#include "perf/support/layout.h"
#include "perf/support/oracle.h"
#include "perf/support/row.h"
#include "perf/support/streaming.h"

namespace inccl::perf {

// What differs between rows.
struct RowCase {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  uint64_t bytes = 0;
  const BenchCodec* codec = nullptr;
};

class RowRunner {
 public:
  // Allocates buffers for sizes up to options.max_bytes. Everything must outlive the runner.
  static Result<RowRunner> Create(World& world, const BenchOptions& options,
                                  const Communicator& communicator, const Inputs& inputs,
                                  ProgressLine* progress);

  // Fills what was measured into a row.
  Result<Row> Run(const RowCase& row_case);

 private:
  RowRunner(World& world, const BenchOptions& options, const Communicator& communicator,
            const Inputs& inputs, ProgressLine* progress)
      : world_(&world),
        options_(&options),
        communicator_(&communicator),
        inputs_(&inputs),
        progress_(progress) {}

  Result<Measurement> Measure(bool in_place);

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
  Result<std::vector<double>> SpansOf(const std::vector<Interval>& mine);
  Status Summarize(const Times& times, Measurement* m);

  BenchCall CallFor(bool in_place) const;
  Status CallOurs(const BenchCall& call, ccl_compression_stats_t* stats) const;
  bool HasBaseline() const;

  void FillSend();
  // The buffer of a call in place holds its input again.
  void RestoreInPlace();
  // Before a side is timed: all sides find their rank's buffers in the same state.
  void MakeReady(bool in_place);
  // Before a check: whatever the call has to write is poison.
  void Poison(bool in_place);

  Status AskWire(bool in_place, Measurement* m);
  Status Check(bool in_place, Measurement* m);
  Result<Accuracy> CheckOnce(bool in_place, uint64_t* digest);
  Accuracy VerifyResult(bool in_place, const ccl_compression_stats_t& stats);
  Accuracy VerifyCopies(const std::byte* result, std::optional<double> bound) const;
  Accuracy VerifyUntouched(bool in_place) const;
  std::span<const std::byte> ResultBytes(bool in_place) const;
  Status CompareDigests(uint64_t mine, Measurement* m);

  World* world_;
  const BenchOptions* options_;
  const Communicator* communicator_;
  const Inputs* inputs_;
  ProgressLine* progress_;

  Buffer send_, recv_;
  std::optional<Oracle> oracle_;  // of the last row with a reduction
  // The row that runs.
  RowCase case_;
  Layout layout_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_ROW_RUNNER_H_
