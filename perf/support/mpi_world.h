// SPDX-License-Identifier: Apache-2.0
//
// Ranks as mpirun starts them, and MPI's own collectives as the baseline. They are in a module of
// their own (mpi_world.cc), which the programs load when an MPI launcher has started them: without
// MPI they run all the same.
#ifndef INCCL_PERF_SUPPORT_MPI_WORLD_H_
#define INCCL_PERF_SUPPORT_MPI_WORLD_H_

#include <cstdint>
#include <functional>
#include <string>

#include "base/types.h"
#include "perf/support/operation.h"
#include "perf/support/world.h"

namespace inccl::perf {

// Whether the environment is that of a process which an MPI launcher started.
bool StartedByMpi();

// The same call of MPI. Where it is in place, `send` and `recv` lie as in the C API of inccl, and
// MPI gets MPI_IN_PLACE and the buffer that belongs to it.
struct MpiCall {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  uint64_t count = 0;
  bool in_place = false;
  const void* send = nullptr;  // out of place
  void* recv = nullptr;        // in place: the whole buffer
};

// What the module exports, as the object `inccl_mpi_module`.
struct MpiModule {
  // Runs `body` between MPI_Init and MPI_Finalize and returns its exit code; kExitFailed aborts the
  // other ranks. Barriers are MPI_Barrier, or those of SharedBarrier where all ranks are on one
  // host.
  int (*run)(const std::string& program, int* argc, char*** argv,
             const std::function<int(World&)>& body);
  // Whether MPI has the type, the operation and the size of count. It has no half, bfloat16 or
  // 8-bit floats, and no average.
  bool (*can)(const MpiCall& call);
  Status (*call)(const MpiCall& call);
};

// Loads the module on the first call, from the program's directory or from where it is installed.
// The error has the loader's words. Not thread-safe.
Result<const MpiModule*> LoadMpi();

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_MPI_WORLD_H_
