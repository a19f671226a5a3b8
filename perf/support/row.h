// SPDX-License-Identifier: Apache-2.0
//
// One row of a benchmark's table: plain values that the table and the JSON file are written from.
#ifndef INCCL_PERF_SUPPORT_ROW_H_
#define INCCL_PERF_SUPPORT_ROW_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/types.h"
#include "perf/support/operation.h"
#include "perf/support/verify.h"

namespace inccl::perf {

// What a call put on the wire, of all ranks.
struct Wire {
  uint64_t bytes = 0;      // payload and headers that a rank sent; of the rank that sent most
  double ratio = 1;        // uncompressed over compressed payload, over all ranks
  double bits = 0;         // payload bits per element and phase, mean of the ranks
  double error_bound = 0;  // largest
  bool compressed = false;
};

// One placement of a row.
struct Measurement {
  // Of the times of the iterations, each over the ranks by -a.
  double time_us = 0;  // median
  double p99_us = 0, max_us = 0;
  double algbw = 0, busbw = 0;  // GB/s

  // Of another side that ran between our iterations; absent without it.
  struct Side {
    double time_us = 0, p99_us = 0, max_us = 0;
    double ratio = 0;  // our median over its; 0 if that took no time
  };
  std::optional<Side> baseline;
  std::optional<Side> limit;

  std::optional<Accuracy> accuracy;  // of all ranks; absent without -c
  std::optional<bool> identical;     // absent where the ranks' results differ by definition
  std::optional<uint64_t> digest;
  std::optional<Wire> wire;  // absent where no call tells

  bool Failed() const { return (accuracy && accuracy->wrong > 0) || (identical && !*identical); }
};

struct Row {
  Operation operation = Operation::kAllReduce;
  std::string algorithm, transport;  // as asked for; "auto" otherwise
  std::string codec;                 // as given
  std::string codec_spec;            // canonical
  int nranks = 1;
  uint64_t bytes = 0, count = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  Measurement out_of_place, in_place;  // in_place only where there is one (HasInPlace)
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_ROW_H_
