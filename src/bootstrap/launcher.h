// SPDX-License-Identifier: Apache-2.0
//
// Reads what the program that started this process says about it: its rank, the number of ranks,
// and a name that the processes of this job share.
#ifndef INCCL_BOOTSTRAP_LAUNCHER_H_
#define INCCL_BOOTSTRAP_LAUNCHER_H_

#include <string>

#include "base/status.h"
#include "config/variables.h"

namespace inccl {

struct Launcher {
  std::string kind;  // "INCCL_RANK", "Open MPI", "torchrun", "PMI", "Slurm"
  int rank = 0;
  int nranks = 1;
  std::string run;     // names the run on all of its hosts: INCCL_JOB, torchrun's run and restart
  std::string job;     // names the job on this host; equal for all of its ranks, not secret
  std::string secret;  // given by the launcher to the ranks only; may be empty
  // What shows that the job has ranks on other hosts; "": nothing does. They join at INCCL_COMM_ID.
  std::string elsewhere;
};

// Returns the first of: INCCL_RANK and INCCL_SIZE; torchrun; Open MPI; PMI (with Hydra); RANK and
// WORLD_SIZE; Slurm. A kInvalidUsage names the variables if there is no launcher, a variable is
// missing or invalid, or neither the launcher nor INCCL_JOB names the job.
Result<Launcher> FindLauncher(const GetEnv& get);

}  // namespace inccl

namespace inccl::bootstrap {

// Identifies the job of a process that Hydra (mpiexec of MPICH, MVAPICH and Intel MPI) has started.
// Hydra puts no job name into the environment, but all of its ranks on a host descend from one
// Hydra process, the proxy.

// Returns e.g. "4711 started 823645": process id and start time (clock ticks since boot) of the
// nearest ancestor that is a proxy. Empty if there is none.
std::string HydraProxy();

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_LAUNCHER_H_
