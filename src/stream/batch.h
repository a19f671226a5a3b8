// SPDX-License-Identifier: Apache-2.0
//
// Calls of one communicator that are submitted together: one asynchronous call, or those of a
// group; and the thread that runs them.
#ifndef INCCL_STREAM_BATCH_H_
#define INCCL_STREAM_BATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "collectives/call.h"
#include "stream/stream.h"

namespace inccl {

// Waits for several batches; the first error wins.
class Completion {
 public:
  void Add() {
    const MutexLock lock(&mutex_);
    ++open_;
  }
  void Done(const Status& status) {
    const MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
    if (--open_ == 0) changed_.NotifyAll();
  }
  Status Wait() {
    const MutexLock lock(&mutex_);
    while (open_ != 0) changed_.Wait(&mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int open_ INCCL_GUARDED_BY(mutex_) = 0;
  Status status_ INCCL_GUARDED_BY(mutex_);
};

// A position on a stream. Batches of one group on the same stream share it: they wait for each
// other, so none of them can have a later position. The object exists before the position is taken,
// so its destructor can always complete the position.
class StreamOrder {
 public:
  StreamOrder(std::shared_ptr<Stream> stream, int batches)
      : stream_(std::move(stream)), open_(batches) {}
  // Completes the position if some batch could not be submitted for lack of memory.
  ~StreamOrder() {
    if (enqueued_ && open_ > 0 && !released_)
      stream_->Complete(position_, status_.ok() ? OutOfMemory() : status_);
  }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Takes the position; called once.
  Status Enqueue(const Stream::User& user) {
    const Result<uint64_t> position = stream_->Enqueue(user);
    if (position.ok()) SetPosition(*position);
    return position.status();
  }
  // Sets a position that the caller has taken together with others.
  void SetPosition(uint64_t position) {
    position_ = position;
    enqueued_ = true;
  }
  // As Stream::WaitFor.
  bool Wait(const Stream::GiveUp& give_up) { return stream_->WaitFor(position_, give_up); }
  std::string Before() const { return stream_->Before(position_); }
  // Called once for each batch. The last call completes the position, with the first error.
  void Complete(const Status& status) {
    const MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
    if (--open_ == 0 && !released_) stream_->Complete(position_, status_);
  }
  // Completes the position now, though batches may still run.
  void Release(const Status& status) {
    const MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
    if (std::exchange(released_, true) || open_ == 0 || !enqueued_) return;
    stream_->Complete(position_, status_);
  }

 private:
  const std::shared_ptr<Stream> stream_;
  uint64_t position_ = 0;
  bool enqueued_ = false;
  Mutex mutex_;  // taken before the stream's
  int open_ INCCL_GUARDED_BY(mutex_);
  bool released_ INCCL_GUARDED_BY(mutex_) = false;
  Status status_ INCCL_GUARDED_BY(mutex_);
};

struct Batch {
  void Add(const Call& call) {
    (call.kind == CallKind::kCollective ? calls : send_recv).push_back(call);
  }

  std::vector<Call> send_recv;                       // run at the same time, before `calls`
  std::vector<Call> calls;                           // run in order
  std::vector<std::shared_ptr<StreamOrder>> orders;  // the worker waits for them before and
                                                     // completes them after
  std::shared_ptr<Completion> completion;            // may be null; its Add() has been called
};

// The thread that runs a communicator's asynchronous batches in the order of their submission. It
// starts with the first batch.
class Worker {
 public:
  // Whether to stop waiting for `order`, on whose stream no position has completed for `stalled`.
  using GiveUp = std::function<bool(const StreamOrder& order, Time stalled)>;

  // `run` runs a batch.
  Worker(std::function<Status(const Batch&)> run, GiveUp give_up);
  // Runs the queued batches, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Takes ownership of the batch. kSystemError if there is no thread or memory; then the batch is
  // unchanged.
  Status Enqueue(Batch&& batch);
  // Any thread. Streams go on without the batch that runs and those behind it, now and later: the
  // thread does not come back from a call of a device's driver.
  void Release(const Status& status);
  bool idle() const { return open_.load(std::memory_order_acquire) == 0; }
  void WaitIdle();

 private:
  void Loop();
  static void ReleaseOrders(const Batch& batch, const Status& status);

  const std::function<Status(const Batch&)> run_;
  const GiveUp give_up_;
  std::atomic<int> open_{0};  // queued and running
  Mutex mutex_;
  CondVar changed_;
  std::deque<Batch> queue_ INCCL_GUARDED_BY(mutex_);
  const Batch* running_ INCCL_GUARDED_BY(mutex_) = nullptr;
  Status released_ INCCL_GUARDED_BY(mutex_);  // of Release; OK: not called
  bool stop_ INCCL_GUARDED_BY(mutex_) = false;
  std::thread thread_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_STREAM_BATCH_H_
