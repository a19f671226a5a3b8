// SPDX-License-Identifier: Apache-2.0
//
// What the program that started this process says about it: its rank, how many there are, and a
// name that the processes of this job share.
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
  std::string job;     // names the job on this host; the same for all of its ranks, not secret
  std::string secret;  // what else the launcher gave to all ranks and to nobody else; may be empty
};

// The first of: INCCL_RANK and INCCL_SIZE; torchrun; Open MPI; PMI (with Hydra); RANK and
// WORLD_SIZE; Slurm. kInvalidUsage naming the variables if there is none, one is missing or makes
// no sense, nothing names the job (no variable of the launcher, not INCCL_JOB), or the job has
// ranks on several hosts.
Result<Launcher> FindLauncher(const GetEnv& get);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_LAUNCHER_H_
