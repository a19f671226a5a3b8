// SPDX-License-Identifier: Apache-2.0
//
// The streaming limit: every rank reads its input once and writes its result once, all at the same
// time. No collective over shared memory can be faster.
#ifndef INCCL_PERF_SUPPORT_STREAMING_H_
#define INCCL_PERF_SUPPORT_STREAMING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "perf/support/layout.h"
#include "perf/support/operation.h"

namespace inccl::perf {

// Bytes that a rank has to read and to write in a call out of place: nothing of the root's buffers
// on other ranks.
struct Streams {
  uint64_t read = 0, write = 0;
};
Streams StreamsOf(Operation operation, const Layout& layout, DataType type, int rank, int root);

// Reads all of `from` and writes all of `to`, each byte once: a copy as far as both go. What is
// longer in `from` is only read; what is longer in `to` repeats `from`, or is filled where there is
// none.
void StreamOnce(std::span<const std::byte> from, std::span<std::byte> to);

// Microseconds on a clock that all processes of a host share.
struct Interval {
  double start = 0, end = 0;
};
double SharedMicroseconds();

// From the first start to the last end; 0 of nothing.
double SpanOf(std::span<const Interval> intervals);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_STREAMING_H_
