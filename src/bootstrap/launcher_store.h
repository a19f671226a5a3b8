// SPDX-License-Identifier: Apache-2.0
//
// The key-value store of the launcher, by which rank 0 tells the other processes of the job, on all
// hosts, where they meet. A reader of the store can join: the job is as safe as the launcher.
#ifndef INCCL_BOOTSTRAP_LAUNCHER_STORE_H_
#define INCCL_BOOTSTRAP_LAUNCHER_STORE_H_

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
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
    Time deadline = kNever;
    const std::atomic<bool>* cancelled = nullptr;
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
  static bool IsCancelled(const Terms& terms) {
    return terms.cancelled != nullptr && terms.cancelled->load();
  }
  static Status Cancelled();
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

#endif  // INCCL_BOOTSTRAP_LAUNCHER_STORE_H_
