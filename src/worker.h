// SPDX-License-Identifier: Apache-2.0
//
// The thread that runs a communicator's asynchronous batches, in the order in which they came. It
// starts with the first.
#ifndef INCCL_WORKER_H_
#define INCCL_WORKER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "batch.h"

namespace inccl {

class Worker {
 public:
  // `run` performs a batch; `give_up` says that waiting for other communicators is pointless.
  Worker(std::function<Status(const Batch&)> run, std::function<bool()> give_up);
  // Runs what is queued, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // kSystemError if there is no thread or memory to be had; then the batch is as it was.
  Status Enqueue(Batch&& batch);
  bool idle() const { return open_.load(std::memory_order_acquire) == 0; }
  void WaitIdle();

 private:
  void Loop();

  const std::function<Status(const Batch&)> run_;
  const std::function<bool()> give_up_;
  std::atomic<int> open_{0};  // queued and running
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace inccl

#endif  // INCCL_WORKER_H_
