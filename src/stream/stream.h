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
#include "device/device.h"

namespace inccl {

class Stream {
 public:
  // Names the owner of a position in messages.
  using User = std::shared_ptr<const std::string>;
  // WaitFor calls it every few milliseconds. `stalled`: how long no earlier position has completed;
  // 0 if there is no earlier one and the wait is for other work of the stream.
  using GiveUp = std::function<bool(Time stalled)>;

  virtual ~Stream() = default;
  // Returns kInvalidArgument if Enqueue would do so now.
  virtual Status Check() { return Status::Ok(); }
  // Takes the next position in the order; kSystemError without memory. The caller must complete
  // every position once.
  Result<uint64_t> Enqueue(const User& user);
  // Takes the next position of each of these streams at one moment: of any two callers that share
  // several streams, one is first on all of them. `users` by stream; no stream twice. If it throws
  // std::bad_alloc, it has taken no position.
  static std::vector<Result<uint64_t>> EnqueueAll(const std::vector<Stream*>& streams,
                                                  const std::vector<User>& users);
  // Waits until all earlier positions have completed and the stream has done its other earlier
  // work. Returns false as soon as `give_up` returns true.
  virtual bool WaitFor(uint64_t position, const GiveUp& give_up) = 0;
  void Complete(uint64_t position, const Status& status);
  // The user of the first uncompleted position before this one.
  std::string Before(uint64_t position) const;

 protected:
  // Returns 0, 1, ...; the caller serializes the calls. May throw std::bad_alloc, without effect.
  virtual Result<uint64_t> EnqueueNext() = 0;
  // Allocates no memory.
  virtual void CompletePosition(uint64_t position, const Status& status) = 0;

 private:
  Result<uint64_t> EnqueueLocked(const User& user) INCCL_REQUIRES(enqueueing_);

  // A thread that locks those of several streams does so in the order of the streams' addresses.
  Mutex enqueueing_ INCCL_ACQUIRED_BEFORE(users_mutex_);
  mutable Mutex users_mutex_;
  uint64_t next_position_ INCCL_GUARDED_BY(enqueueing_) = 0;
  std::map<uint64_t, User> users_ INCCL_GUARDED_BY(users_mutex_);  // by position
};

// Measures for how long a count has not changed, without the time in which the observing thread was
// kept from running.
class Standstill {
 public:
  Time Look(uint64_t count);

 private:
  uint64_t count_ = 0;
  Time since_ = 0, looked_ = 0;
};

// Positions complete in any order; count() is the number of positions before the first uncompleted
// one. Take may throw std::bad_alloc; Complete allocates no memory.
class CompletedPositions {
 public:
  uint64_t count() const { return count_; }
  void Take() { completed_.push_back(false); }
  // Undoes the last Take.
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

// For calls on host memory only.
class HostStream final : public Stream {
 public:
  bool WaitFor(uint64_t position, const GiveUp& give_up) override;

  // Waits until all positions taken so far have completed.
  Status Synchronize();
  // Returns kInProgress while there are uncompleted positions. Synchronize and Query return the
  // first error since one of them last returned one, and clear it.
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

// A stream of a device as an order of calls. A call runs when the device has done the work that was
// put on the stream before it, and the device continues when the call is done.
class DeviceStream final : public Stream {
 public:
  explicit DeviceStream(std::unique_ptr<DeviceOrder> order) : order_(std::move(order)) {}
  Status Check() override { return order_->Check(); }
  // There is no time limit for the device's own work before the position.
  bool WaitFor(uint64_t position, const GiveUp& give_up) override;

 protected:
  Result<uint64_t> EnqueueNext() override;
  // The device keeps no error; the communicator does.
  void CompletePosition(uint64_t position, const Status& status) override;

 private:
  const std::unique_ptr<DeviceOrder> order_;
  uint64_t enqueued_ = 0;  // positions that EnqueueNext has returned
  Mutex mutex_;
  CompletedPositions completed_ INCCL_GUARDED_BY(mutex_);
};

// Returns the one object for a stream of the device (NULL: its legacy stream).
Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream);

}  // namespace inccl

#endif  // INCCL_STREAM_STREAM_H_
