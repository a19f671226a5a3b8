// SPDX-License-Identifier: Apache-2.0
//
// A row's results against what they must be.
#ifndef INCCL_PERF_BENCH_ROW_CHECK_H_
#define INCCL_PERF_BENCH_ROW_CHECK_H_

#include <optional>

#include "perf/bench/row_buffers.h"
#include "perf/support/oracle.h"
#include "perf/support/verify.h"

namespace inccl::perf {

class RowCheck {
 public:
  RowCheck(const World& world, const Inputs& inputs) : world_(&world), inputs_(&inputs) {}

  // Before Verify: what the row of `buffers` must give.
  void Begin(const RowBuffers& buffers);
  // The result that lies in the host (RowBuffers::Fetch); with what the call said of it.
  Accuracy Verify(const RowBuffers& buffers, bool in_place,
                  const ccl_compression_stats_t& stats) const;

 private:
  Accuracy VerifyCopies(const RowBuffers& buffers, const std::byte* result,
                        std::optional<double> bound) const;
  static Accuracy VerifyUntouched(const RowBuffers& buffers, bool in_place);

  const World* world_;
  const Inputs* inputs_;
  std::optional<Oracle> oracle_;  // of the last row with a reduction
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_ROW_CHECK_H_
