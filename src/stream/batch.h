// SPDX-License-Identifier: Apache-2.0
//
// Calls of one communicator that are handed over together: one asynchronous call, or a group's.
#ifndef INCCL_STREAM_BATCH_H_
#define INCCL_STREAM_BATCH_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/point.h"
#include "stream/stream.h"

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

// A place on a stream. Batches of one group that go on the same stream have it in common: they wait
// for each other, so none can come after another. It is made before the place is taken, so that a
// place that has been taken is left whatever happens.
class Turn {
 public:
  Turn(std::shared_ptr<Stream> stream, int batches) : stream_(std::move(stream)), open_(batches) {}
  // Leaves the place if some batch never came to do it: there was no memory to hand it over.
  ~Turn() {
    if (entered_ && open_ > 0) stream_->Leave(place_, status_.ok() ? OutOfMemory() : status_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Takes the place, once.
  Status Enter(const Stream::User& user) {
    const Result<uint64_t> place = stream_->Enter(user);
    if (place.ok()) Entered(*place);
    return place.status();
  }
  // The place has been taken, with others.
  void Entered(uint64_t place) {
    place_ = place;
    entered_ = true;
  }
  // As Stream::WaitTurn.
  bool Wait(const Stream::GiveUp& give_up) { return stream_->WaitTurn(place_, give_up); }
  std::string Before() const { return stream_->Before(place_); }
  // Once for each batch; the last leaves the place, with the first error.
  void Leave(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    if (--open_ == 0) stream_->Leave(place_, status_);
  }

 private:
  const std::shared_ptr<Stream> stream_;
  uint64_t place_ = 0;
  bool entered_ = false;
  std::mutex mutex_;
  int open_;
  Status status_;
};

struct Batch {
  std::vector<PointCall> points;             // all at the same time, before the collectives
  std::vector<Call> calls;                   // in order
  std::vector<std::shared_ptr<Turn>> turns;  // waited for before, left afterwards
  std::shared_ptr<Completion> completion;    // may be null; Add() has been called
};

}  // namespace inccl

#endif  // INCCL_STREAM_BATCH_H_
