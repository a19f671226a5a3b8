// SPDX-License-Identifier: Apache-2.0
//
// What a row's calls read and write: a rank's two buffers, their contents before and after.
#ifndef INCCL_PERF_BENCH_ROW_BUFFERS_H_
#define INCCL_PERF_BENCH_ROW_BUFFERS_H_

#include <cstdint>
#include <span>

#include "perf/bench/buffers.h"
#include "perf/bench/communicator.h"
#include "perf/support/inputs.h"
#include "perf/support/layout.h"
#include "perf/support/world.h"

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

class RowBuffers {
 public:
  // For sizes up to options.max_bytes. Everything must outlive this; gpu: nullptr, or whose memory.
  static Result<RowBuffers> Create(const World& world, const BenchOptions& options,
                                   const Inputs& inputs, Gpu* gpu);

  // A row begins: its input is in the send buffer.
  Status Begin(const RowCase& row_case);
  const RowCase& row() const { return case_; }
  const Layout& layout() const { return layout_; }
  BenchCall CallFor(bool in_place) const;
  // The whole buffers, for calls that have other pointers in place.
  const void* send() const { return send_.data(); }
  void* recv() const { return recv_.data(); }

  // The buffer of a call in place holds its input again.
  Status RestoreInPlace() const;
  // Before a side is timed: all sides find their rank's buffers in the same state.
  Status MakeReady(bool in_place) const;
  // The streaming limit, once. In place too the input is copied to another place: what is read and
  // written is as much. On a device enqueued only: a copy with the same traffic.
  Status StreamOnce() const;
  // All that was put on the device's stream is done.
  Status Synchronize() const;

  // Before a check: whatever the call has to write is poison, and what lies around it.
  Status Poison(bool in_place) const;
  // After it: both buffers and their guards are in the host.
  Status Fetch(bool in_place) const;
  // Then, and before the next call:
  std::span<const std::byte> Input() const;
  std::span<const std::byte> ResultBytes(bool in_place) const;
  std::span<const std::byte> WholeRecv() const { return {recv_.host(), UsedRecv(false)}; }
  // Bytes of the guards that are not as they were.
  uint64_t Disturbed(bool in_place) const;

 private:
  RowBuffers(const World& world, const Inputs& inputs, Gpu* gpu)
      : world_(&world), inputs_(&inputs), gpu_(gpu) {}
  uint64_t UsedRecv(bool in_place) const;

  const World* world_;
  const Inputs* inputs_;
  Gpu* gpu_;
  Buffer send_, recv_;
  RowCase case_;
  Layout layout_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_ROW_BUFFERS_H_
