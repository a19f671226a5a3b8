// SPDX-License-Identifier: Apache-2.0
//
// The thread that runs a communicator's asynchronous batches in the order of their submission. It
// starts with the first batch.
#ifndef INCCL_STREAM_WORKER_H_
#define INCCL_STREAM_WORKER_H_

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "stream/batch.h"

namespace inccl {

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

#endif  // INCCL_STREAM_WORKER_H_
