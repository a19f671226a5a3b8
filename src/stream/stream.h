// SPDX-License-Identifier: Apache-2.0
//
// Orders of asynchronous calls, also of several communicators. Thread-safe.
#ifndef INCCL_STREAM_STREAM_H_
#define INCCL_STREAM_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace inccl {

class Stream {
 public:
  // Who takes a position, for messages.
  using User = std::shared_ptr<const std::string>;
  // Asked every few milliseconds: for how long no earlier position has been left (0 while there is
  // none, and what is waited for is something else).
  using GiveUp = std::function<bool(Time stalled)>;

  virtual ~Stream() = default;
  // kInvalidArgument: Enqueue would say so now.
  virtual Status Check() { return Status::Ok(); }
  // Takes the next position in the order; out of memory is an error as any other. Every position
  // must be left, once.
  Result<uint64_t> Enqueue(const User& user);
  // The next position of each of these streams, all at one moment: of any two that take positions
  // on the same streams, one is first on all of them. `users` by stream; no stream twice. If it
  // throws std::bad_alloc no position has been taken.
  static std::vector<Result<uint64_t>> EnqueueAll(const std::vector<Stream*>& streams,
                                                  const std::vector<User>& users);
  // Waits until every earlier position has been left and what else the stream does before has been
  // done, or `give_up` says true; then returns false.
  virtual bool WaitFor(uint64_t position, const GiveUp& give_up) = 0;
  void Complete(uint64_t position, const Status& status);
  // Who has the first of the positions before this one that have not been left.
  std::string Before(uint64_t position) const;

 protected:
  // The positions are 0, 1, ... One call at a time. May throw std::bad_alloc, and has no effect
  // then.
  virtual Result<uint64_t> EnqueueNext() = 0;
  // Needs no memory.
  virtual void CompletePosition(uint64_t position, const Status& status) = 0;

 private:
  Result<uint64_t> EnqueueLocked(const User& user) INCCL_REQUIRES(enqueueing_);

  // A thread that takes those of several streams does so in the order of the streams' addresses.
  Mutex enqueueing_ INCCL_ACQUIRED_BEFORE(users_mutex_);
  mutable Mutex users_mutex_;
  uint64_t next_position_ INCCL_GUARDED_BY(enqueueing_) = 0;
  std::map<uint64_t, User> users_ INCCL_GUARDED_BY(users_mutex_);  // by position
};

// For how long a count has stood still, without what the one who looks was kept from running.
class Standstill {
 public:
  Time Look(uint64_t count);

 private:
  uint64_t count_ = 0;
  Time since_ = 0, looked_ = 0;
};

// Places are left in any order; counts those before which all have been left. Taking a position may
// throw std::bad_alloc; leaving one needs no memory.
class CompletedPositions {
 public:
  uint64_t count() const { return count_; }
  void Take() { completed_.push_back(false); }
  // The position that was taken last is not one after all.
  void Untake() { completed_.pop_back(); }
  void Complete(uint64_t position) {
    completed_[position - count_] = true;
    while (!completed_.empty() && completed_.front()) {
      completed_.pop_front();
      ++count_;
    }
  }

 private:
  uint64_t count_ = 0;
  std::deque<bool> completed_;  // the positions from count_ on
};

// Of calls on memory of the host alone.
class HostStream final : public Stream {
 public:
  bool WaitFor(uint64_t position, const GiveUp& give_up) override;

  // Waits until all positions taken so far have been left.
  Status Synchronize();
  // kInProgress while there are positions that have not been left. Both return the first error
  // since one of them last returned, and forget it.
  Status Query();

 protected:
  Result<uint64_t> EnqueueNext() override;
  void CompletePosition(uint64_t position, const Status& status) override;

 private:
  Status TakeError() INCCL_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  uint64_t enqueued_ INCCL_GUARDED_BY(mutex_) = 0;
  CompletedPositions completed_ INCCL_GUARDED_BY(mutex_);
  Status error_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_STREAM_STREAM_H_
