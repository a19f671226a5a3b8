// SPDX-License-Identifier: Apache-2.0
//
// The key-value store of the launcher, by which rank 0 gives the other processes of the job, on all
// hosts, a unique id. A reader of the store can join: the job is as safe as the launcher.
#ifndef INCCL_BOOTSTRAP_LAUNCHER_STORE_H_
#define INCCL_BOOTSTRAP_LAUNCHER_STORE_H_

#include <atomic>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/launcher.h"
#include "config/variables.h"

namespace inccl {

class LauncherStore {
 public:
  virtual ~LauncherStore() = default;
  virtual const char* name() const = 0;  // "PMIx", "PMI"
  struct Terms {
    int rank = 0;
    int index = 0;  // of the value: 0, 1, ... in the order of calls, equal on all ranks
    Time deadline = kNever;
    const std::atomic<bool>* cancelled = nullptr;
  };
  // All ranks call this; returns rank 0's value, which consists of hexadecimal digits. Thread-safe.
  virtual Result<std::string> Share(const std::string& value, const Terms& terms) = 0;
};

// The store that this process's launcher offers, by its variables: PMIx or else PMI version 1.
// nullptr if it has none; the store of a launcher that has started another one, such as torchrun,
// does not count. Lives as long as the process.
LauncherStore* FindLauncherStore(const Launcher& launcher, const GetEnv& get);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_LAUNCHER_STORE_H_
