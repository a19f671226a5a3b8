// SPDX-License-Identifier: Apache-2.0
//
// The call of another library beside ours.
#ifndef INCCL_PERF_BENCH_BASELINE_H_
#define INCCL_PERF_BENCH_BASELINE_H_

#include <memory>
#include <string>

#include "perf/bench/row_buffers.h"

namespace inccl::perf {

class BaselineCalls {
 public:
  virtual ~BaselineCalls() = default;
  virtual std::string name() const = 0;     // "MPI": of the column
  virtual std::string version() const = 0;  // "mpi": for records
  // Whether it has the type, the operation and the size of the row.
  virtual bool Can(const RowBuffers& buffers) const = 0;
  // Whether its results are held to what ours must be: that the calls are the same is then shown.
  virtual bool Checked() const { return false; }
  // On a device: enqueued on the stream of ours.
  virtual Status Run(const RowBuffers& buffers, bool in_place) = 0;
};

// MPI's, in a world that MPI made.
Result<std::unique_ptr<BaselineCalls>> MpiBaseline();

// NCCL's, of the library `file` (Nccl::Load), in a communicator of all ranks. All ranks make this
// call; where one of them has an error all have the same: why there can be none, in words.
Result<std::unique_ptr<BaselineCalls>> NcclBaseline(World& world, const Gpu& gpu,
                                                    const std::string& file);

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_BASELINE_H_
