// SPDX-License-Identifier: Apache-2.0
//
// Orders of asynchronous calls, also of several communicators. Thread-safe.
#ifndef INCCL_STREAM_H_
#define INCCL_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "base/status.h"

namespace inccl {

class Stream {
 public:
  virtual ~Stream() = default;
  // kInvalidArgument: Enter would say so now.
  virtual Status Check() { return Status::Ok(); }
  // Takes the next place in the order. Every place must be left, once.
  virtual Result<uint64_t> Enter() = 0;
  // Waits until every earlier place has been left and what else the stream does before has been
  // done, or `give_up` (asked every few milliseconds) says true; then returns false.
  virtual bool WaitTurn(uint64_t place, const std::function<bool()>& give_up) = 0;
  virtual void Leave(uint64_t place, const Status& status) = 0;
};

// Places are left in any order; counts those before which all have been left. Taking a place may
// throw std::bad_alloc; leaving one needs no memory.
class LeftPlaces {
 public:
  uint64_t count() const { return count_; }
  void Take() { left_.push_back(false); }
  // The place that was taken last is not one after all.
  void Untake() { left_.pop_back(); }
  void Leave(uint64_t place) {
    left_[place - count_] = true;
    while (!left_.empty() && left_.front()) {
      left_.pop_front();
      ++count_;
    }
  }

 private:
  uint64_t count_ = 0;
  std::deque<bool> left_;  // the places from count_ on
};

// Of calls on memory of the host alone.
class HostStream final : public Stream {
 public:
  Result<uint64_t> Enter() override;
  bool WaitTurn(uint64_t place, const std::function<bool()>& give_up) override;
  void Leave(uint64_t place, const Status& status) override;

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
  LeftPlaces left_;
  Status error_;
};

}  // namespace inccl

#endif  // INCCL_STREAM_H_
