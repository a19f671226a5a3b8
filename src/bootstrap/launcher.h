// SPDX-License-Identifier: Apache-2.0
//
// Reads what the program that started this process says about it: its rank, the number of ranks,
// and a name that the processes of this job share; and uses its key-value store.
#ifndef INCCL_BOOTSTRAP_LAUNCHER_H_
#define INCCL_BOOTSTRAP_LAUNCHER_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/mutex.h"
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

namespace inccl {

// The key-value store of the launcher, by which rank 0 tells the other processes of the job, on all
// hosts, where they meet. A reader of the store can join: the job is as safe as the launcher.
class LauncherStore {
 public:
  virtual ~LauncherStore() = default;
  virtual const char* name() const = 0;  // "PMIx", "PMI"
  struct Terms {
    int rank = 0;
    Time deadline = kNever;
    Cancel cancelled = {};
  };
  // All ranks call this; returns rank 0's value, which consists of hexadecimal digits: the first
  // call of rank 0 makes it, later calls return the same. Thread-safe. The exchange goes on if its
  // caller gives up, since it needs a barrier of all ranks. After an error of the launcher's all
  // later calls return it.
  Result<std::string> Share(const std::function<std::string()>& make, const Terms& terms);

 protected:
  // Called once, in the store's thread; terms.cancelled ends it when the store is destroyed.
  virtual Result<std::string> Exchange(const std::string& value, const Terms& terms) = 0;
  // Derived classes call it when they are destroyed.
  void Stop();
  // kTimeout: the launcher does not answer to `request`.
  Status TimedOut(const char* request) const;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<std::string> value_ INCCL_GUARDED_BY(mutex_);  // of this rank
  std::optional<Result<std::string>> result_ INCCL_GUARDED_BY(mutex_);
  std::thread thread_ INCCL_GUARDED_BY(mutex_);
  std::atomic<bool> stopped_{false};
};

// The store that this process's launcher offers, by its variables: PMIx or else PMI version 1.
// nullptr if it has none; the store of a launcher that has started another one, such as torchrun,
// does not count. Lives as long as the process.
LauncherStore* FindLauncherStore(const Launcher& launcher, const GetEnv& get);

}  // namespace inccl

namespace inccl::bootstrap {

// The store of PMI version 1: lines of text over a socket to the launcher (PMI_FD), as MPICH's
// Hydra has it, also of MVAPICH and Intel MPI, and Slurm with --mpi=pmi2. A value is visible to the
// other ranks after a barrier of all ranks.
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

// The store of PMIx, which Open MPI's mpirun and Slurm (--mpi=pmix) offer. libpmix.so.2 is loaded
// when it is first used.

struct PmixLibrary;
struct PmixProcess;

class PmixStore final : public LauncherStore {
 public:
  PmixStore() = default;
  ~PmixStore() override { Stop(); }
  const char* name() const override { return "PMIx"; }

 protected:
  Result<std::string> Exchange(const std::string& value, const Terms& terms) override;

 private:
  Status Begin();
  Status Put(const std::string& key, const std::string& value);
  template <typename Function>
  Result<std::string> Await(const char* what, const Terms& terms, Function&& start);

  const PmixLibrary* library_ = nullptr;
  const PmixProcess* self_ = nullptr;  // nullptr: PMIx is not initialized
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_LAUNCHER_H_
