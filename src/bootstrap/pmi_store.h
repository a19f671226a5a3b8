// SPDX-License-Identifier: Apache-2.0
//
// The store of PMI version 1: lines of text over a socket to the launcher (PMI_FD), as MPICH's
// Hydra has it, also of MVAPICH and Intel MPI, and Slurm with --mpi=pmi2. A value is visible to the
// other ranks after a barrier of all ranks.
#ifndef INCCL_BOOTSTRAP_PMI_STORE_H_
#define INCCL_BOOTSTRAP_PMI_STORE_H_

#include <sys/types.h>

#include <map>
#include <string>

#include "bootstrap/launcher_store.h"

namespace inccl::bootstrap {

class PmiStore final : public LauncherStore {
 public:
  // `fd` belongs to the process; an MPI library may use it, too, at other times. `begin`: whether
  // the server expects an init before other requests, as Slurm's does. Hydra's does not.
  PmiStore(int fd, bool begin) : fd_(fd), begin_(begin) {}
  ~PmiStore() override { Stop(); }
  // Calls Finalize when the process exits.
  void FinalizeAtExit();
  // Hydra takes the end of a process that has made a request for a failure of the job, unless the
  // process has sent a finalize. Does nothing if an MPI library has sent one and closed `fd`.
  void Finalize();
  const char* name() const override { return "PMI"; }

 protected:
  Result<std::string> Exchange(const std::string& value, const Terms& terms) override;

 private:
  using Fields = std::map<std::string, std::string, std::less<>>;

  // Sends a line and returns the fields of the answer, which must be an `answer`.
  Result<Fields> Request(const std::string& line, std::string_view answer, const Terms& terms);
  Result<std::string> ReadLine(const Terms& terms);

  const int fd_;
  const bool begin_;
  // What `fd_` was at the first request; later it may be closed, and its number reused.
  bool IsStillOpen() const;

  pid_t pid_ = 0;  // 0: no request has been made
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::string kvs_;     // the name of the job's store
  std::string unread_;  // bytes behind the last line
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_PMI_STORE_H_
