// SPDX-License-Identifier: Apache-2.0
//
// A host stream: an order of asynchronous calls, also of several communicators. Thread-safe.
#ifndef INCCL_STREAM_H_
#define INCCL_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

#include "base/status.h"

namespace inccl {

class Stream {
 public:
  // Takes the next place in the order. Every place must be left, once.
  uint64_t Enter();
  // Waits until every earlier place has been left, or `give_up` (asked every few milliseconds) says
  // true; then returns false.
  bool WaitTurn(uint64_t place, const std::function<bool()>& give_up);
  void Leave(uint64_t place, const Status& status);

  // Waits until all places taken so far have been left.
  Status Synchronize();
  // kInProgress while there are places that have not been left. Both return the first error since
  // one of them last returned, and forget it.
  Status Query();

 private:
  Status TakeError();  // holds mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t entered_ = 0;
  uint64_t left_ = 0;              // all places below have been left
  std::set<uint64_t> left_early_;  // and these
  Status error_;
};

}  // namespace inccl

#endif  // INCCL_STREAM_H_
