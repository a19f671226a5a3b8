// SPDX-License-Identifier: Apache-2.0
//
// A store whose values become visible by a barrier of all ranks. The barriers of all ranks must be
// those of one value, so values take turns in the order of their index. A thread of the store's own
// takes each turn to its end, whether or not a caller still waits for it: what it owes the other
// ranks and the launcher does not stand in the way of later turns.
#ifndef INCCL_BOOTSTRAP_ORDERED_STORE_H_
#define INCCL_BOOTSTRAP_ORDERED_STORE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "bootstrap/launcher_store.h"

namespace inccl::bootstrap {

class OrderedStore : public LauncherStore {
 public:
  // After an error of the launcher's all later calls return it.
  Result<std::string> Share(const std::string& value, const Terms& terms) final;

 protected:
  // One call at a time, in the store's thread. `terms.cancelled` ends it when the store is
  // destroyed.
  virtual Result<std::string> ShareInTurn(const std::string& value, const Terms& terms) = 0;
  // Derived classes call it when they are destroyed.
  void Stop();
  static bool IsCancelled(const Terms& terms) {
    return terms.cancelled != nullptr && terms.cancelled->load();
  }
  static Status Cancelled();
  // kTimeout: the launcher does not answer to `request`.
  Status TimedOut(const char* request) const;

 private:
  struct Turn {
    std::string value;
    int rank = 0;
    std::optional<Result<std::string>> result = {};
  };

  void TakeTurns();

  Mutex mutex_;
  CondVar changed_;
  std::map<int, std::shared_ptr<Turn>> turns_ INCCL_GUARDED_BY(mutex_);  // that wait, by index
  int next_ INCCL_GUARDED_BY(mutex_) = 0;  // the index whose turn it is
  bool busy_ INCCL_GUARDED_BY(mutex_) = false;
  Status broken_ INCCL_GUARDED_BY(mutex_);
  std::thread thread_ INCCL_GUARDED_BY(mutex_);  // takes turns while there are any
  std::atomic<bool> stopped_{false};
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_ORDERED_STORE_H_
