// SPDX-License-Identifier: Apache-2.0
//
// Calls of one communicator that are handed over together: one asynchronous call, or a group's.
#ifndef INCCL_BATCH_H_
#define INCCL_BATCH_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "call.h"
#include "collectives/point.h"
#include "stream.h"

namespace inccl {

// Waits for several batches; the first error wins.
class Completion {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    ++open_;
  }
  void Done(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--open_ == 0) changed_.notify_all();
  }
  Status Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;
  Status status_;
};

struct Batch {
  struct Turn {
    std::shared_ptr<Stream> stream;
    uint64_t place = 0;
  };
  std::vector<PointCall> points;           // all at the same time, before the collectives
  std::vector<Call> calls;                 // in order
  std::vector<Turn> turns;                 // waited for before, left afterwards
  std::shared_ptr<Completion> completion;  // may be null; Add() has been called
};

}  // namespace inccl

#endif  // INCCL_BATCH_H_
