// SPDX-License-Identifier: Apache-2.0
#include "stream/batch.h"

#include <functional>
#include <utility>

#include "base/thread.h"

namespace inccl {

Worker::Worker(std::function<Status(const Batch&)> run, GiveUp give_up)
    : run_(std::move(run)), give_up_(std::move(give_up)) {}

Worker::~Worker() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status Worker::Enqueue(Batch&& batch) {
  const MutexLock lock(&mutex_);
  Status status = CatchOutOfMemory([&]() -> Status {
    mutex_.AssertHeld();
    if (!thread_.joinable()) {
      Result<std::thread> thread = StartThread("inccl-worker", [this] { Loop(); });
      if (!thread.ok()) return thread.status();
      thread_ = *std::move(thread);
    }
    queue_.push_back(std::move(batch));
    return Status::Ok();
  });
  if (!status.ok()) return status;
  if (!released_.ok()) ReleaseOrders(queue_.back(), released_);
  open_.fetch_add(1, std::memory_order_acq_rel);
  changed_.NotifyAll();
  return status;
}

void Worker::ReleaseOrders(const Batch& batch, const Status& status) {
  for (const std::shared_ptr<StreamOrder>& order : batch.orders) order->Release(status);
}

void Worker::Release(const Status& status) {
  const MutexLock lock(&mutex_);
  released_ = status;
  if (running_ != nullptr) ReleaseOrders(*running_, status);
  for (const Batch& batch : queue_) ReleaseOrders(batch, status);
}

void Worker::WaitIdle() {
  const MutexLock lock(&mutex_);
  while (open_.load() != 0) changed_.Wait(&mutex_);
}

void Worker::Loop() {
  const MutexLock lock(&mutex_);
  while (true) {
    while (!stop_ && queue_.empty()) changed_.Wait(&mutex_);
    if (queue_.empty()) return;
    const Batch batch = std::move(queue_.front());
    queue_.pop_front();
    running_ = &batch;
    Status status;
    {
      const MutexUnlock unlocked(&mutex_);
      for (const std::shared_ptr<StreamOrder>& order : batch.orders) {
        const auto give_up = [&](Time stalled) { return give_up_(*order, stalled); };
        order->Wait(std::cref(give_up));  // by reference, so that no memory is needed
      }
      status = run_(batch);
    }
    running_ = nullptr;
    // Marks the worker idle before it notifies: a notified caller may call at once and must find
    // the communicator free.
    open_.fetch_sub(1, std::memory_order_acq_rel);
    changed_.NotifyAll();
    const MutexUnlock unlocked(&mutex_);
    for (const std::shared_ptr<StreamOrder>& order : batch.orders) order->Complete(status);
    if (batch.completion != nullptr) batch.completion->Done(status);
  }
}

}  // namespace inccl
