// SPDX-License-Identifier: Apache-2.0
//
// Orders of asynchronous calls, also of several communicators. Thread-safe.
#ifndef INCCL_STREAM_STREAM_H_
#define INCCL_STREAM_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace inccl {

class Stream {
 public:
  // Who takes a place, for messages.
  using User = std::shared_ptr<const std::string>;
  // Asked every few milliseconds: for how long no earlier place has been left (0 while there is
  // none, and what is waited for is something else).
  using GiveUp = std::function<bool(Time stalled)>;

  virtual ~Stream() = default;
  // kInvalidArgument: Enter would say so now.
  virtual Status Check() { return Status::Ok(); }
  // Takes the next place in the order; out of memory is an error as any other. Every place must be
  // left, once.
  Result<uint64_t> Enter(const User& user);
  // The next place of each of these streams, all at one moment: of any two that take places on the
  // same streams, one is first on all of them. `users` by stream; no stream twice. If it throws
  // std::bad_alloc no place has been taken.
  static std::vector<Result<uint64_t>> EnterAll(const std::vector<Stream*>& streams,
                                                const std::vector<User>& users);
  // Waits until every earlier place has been left and what else the stream does before has been
  // done, or `give_up` says true; then returns false.
  virtual bool WaitTurn(uint64_t place, const GiveUp& give_up) = 0;
  void Leave(uint64_t place, const Status& status);
  // Who has the first of the places before this one that have not been left.
  std::string Before(uint64_t place) const;

 protected:
  // The places are 0, 1, ... One call at a time. May throw std::bad_alloc, and has no effect then.
  virtual Result<uint64_t> TakePlace() = 0;
  // Needs no memory.
  virtual void LeavePlace(uint64_t place, const Status& status) = 0;

 private:
  Result<uint64_t> EnterLocked(const User& user);  // holds entering_

  std::mutex entering_;  // of several streams: in the order of their addresses
  mutable std::mutex users_mutex_;
  uint64_t next_place_ = 0;         // entering_
  std::map<uint64_t, User> users_;  // users_mutex_; by place
};

// For how long a count has stood still, without what the one who looks was kept from running.
class Standstill {
 public:
  Time Look(uint64_t count);

 private:
  uint64_t count_ = 0;
  Time since_ = 0, looked_ = 0;
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
  bool WaitTurn(uint64_t place, const GiveUp& give_up) override;

  // Waits until all places taken so far have been left.
  Status Synchronize();
  // kInProgress while there are places that have not been left. Both return the first error since
  // one of them last returned, and forget it.
  Status Query();

 protected:
  Result<uint64_t> TakePlace() override;
  void LeavePlace(uint64_t place, const Status& status) override;

 private:
  Status TakeError();  // holds mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t entered_ = 0;
  LeftPlaces left_;
  Status error_;
};

}  // namespace inccl

#endif  // INCCL_STREAM_STREAM_H_
