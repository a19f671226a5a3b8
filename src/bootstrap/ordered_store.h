// SPDX-License-Identifier: Apache-2.0
//
// A store whose values become visible by a barrier of all ranks. The barriers of all ranks must be
// those of one value, so values take turns in the order of their index.
#ifndef INCCL_BOOTSTRAP_ORDERED_STORE_H_
#define INCCL_BOOTSTRAP_ORDERED_STORE_H_

#include <string>

#include "base/mutex.h"
#include "bootstrap/launcher_store.h"

namespace inccl::bootstrap {

class OrderedStore : public LauncherStore {
 public:
  // After an error all later calls return it: an answer may still come, which would be taken for
  // that of the next request.
  Result<std::string> Share(const std::string& value, const Terms& terms) final;

 protected:
  // One call at a time.
  virtual Result<std::string> ShareInTurn(const std::string& value, const Terms& terms) = 0;
  static bool IsCancelled(const Terms& terms) {
    return terms.cancelled != nullptr && terms.cancelled->load();
  }
  static Status Cancelled() {
    return RemoteError("this rank ended the creation of the communicator");
  }
  // kTimeout: the launcher does not answer to `request`.
  Status TimedOut(const char* request) const;

 private:
  Mutex mutex_;
  CondVar changed_;
  int next_ INCCL_GUARDED_BY(mutex_) = 0;  // the index whose turn it is
  Status broken_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_ORDERED_STORE_H_
