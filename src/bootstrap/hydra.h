// SPDX-License-Identifier: Apache-2.0
//
// Identifies the job of a process that Hydra (mpiexec of MPICH, MVAPICH and Intel MPI) has started.
// Hydra puts no job name into the environment, but all of its ranks on a host descend from one
// Hydra process, the proxy.
#ifndef INCCL_BOOTSTRAP_HYDRA_H_
#define INCCL_BOOTSTRAP_HYDRA_H_

#include <string>

namespace inccl::bootstrap {

// Returns e.g. "4711 started 823645": process id and start time (clock ticks since boot) of the
// nearest ancestor that is a proxy. Empty if there is none.
std::string HydraProxy();

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HYDRA_H_
