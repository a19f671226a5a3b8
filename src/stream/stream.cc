// SPDX-License-Identifier: Apache-2.0
#include "stream/stream.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/clock.h"

namespace inccl {
namespace {

constexpr Time kAskAgain = 20 * kMillisecond;
// A longer gap between two calls of Look means that the thread was kept from running.
constexpr Time kKeptFromRunning = 200 * kMillisecond;

}  // namespace

Time Standstill::Look(uint64_t count) {
  const Time now = SystemClock().Now();
  if (looked_ == 0 || count != count_) {
    since_ = now;
  } else if (now - looked_ > kKeptFromRunning) {
    since_ += now - looked_;
  }
  count_ = count;
  looked_ = now;
  return now - since_;
}

Result<uint64_t> Stream::EnqueueLocked(const User& user) {
  Result<uint64_t> position(OutOfMemory());
  (void)CatchOutOfMemory([&] {
    enqueueing_.AssertHeld();
    {
      const MutexLock lock(&users_mutex_);
      users_[next_position_] = user;
    }
    position = EnqueueNext();
    return Status::Ok();
  });
  const MutexLock lock(&users_mutex_);
  if (position.ok()) {
    ++next_position_;
  } else {
    users_.erase(next_position_);
  }
  return position;
}

Result<uint64_t> Stream::Enqueue(const User& user) {
  const MutexLock lock(&enqueueing_);
  return EnqueueLocked(user);
}

// Not analysed: the number of mutexes is known at run time only.
std::vector<Result<uint64_t>> Stream::EnqueueAll(const std::vector<Stream*>& streams,
                                                 const std::vector<User>& users)
    INCCL_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<Stream*> sorted = streams;
  std::sort(sorted.begin(), sorted.end(), std::less<>());
  std::deque<MutexLock> locks;
  for (Stream* stream : sorted) locks.emplace_back(&stream->enqueueing_);
  std::vector<Result<uint64_t>> positions;
  positions.reserve(streams.size());
  for (size_t i = 0; i < streams.size(); ++i)
    positions.push_back(streams[i]->EnqueueLocked(users[i]));
  return positions;
}

void Stream::Complete(uint64_t position, const Status& status) {
  {
    const MutexLock lock(&users_mutex_);
    users_.erase(position);
  }
  CompletePosition(position, status);
}

std::string Stream::Before(uint64_t position) const {
  const MutexLock lock(&users_mutex_);
  const auto first = users_.begin();
  return first == users_.end() || first->first >= position ? "none" : *first->second;
}

Result<uint64_t> HostStream::EnqueueNext() {
  const MutexLock lock(&mutex_);
  completed_.Take();
  return enqueued_++;
}

bool HostStream::WaitFor(uint64_t position, const GiveUp& give_up) {
  Standstill standstill;
  const MutexLock lock(&mutex_);
  while (completed_.count() < position) {
    const Time stalled = standstill.Look(completed_.count());
    {
      const MutexUnlock unlocked(&mutex_);
      if (give_up(stalled)) return false;
    }
    if (completed_.count() < position) changed_.WaitFor(&mutex_, kAskAgain);
  }
  return true;
}

void HostStream::CompletePosition(uint64_t position, const Status& status) {
  const MutexLock lock(&mutex_);
  if (error_.ok()) error_ = status;
  completed_.Complete(position);
  changed_.NotifyAll();
}

Status HostStream::TakeError() { return std::exchange(error_, Status::Ok()); }

Status HostStream::Synchronize() {
  const MutexLock lock(&mutex_);
  const uint64_t until = enqueued_;
  while (completed_.count() < until) changed_.Wait(&mutex_);
  return TakeError();
}

Status HostStream::Query() {
  const MutexLock lock(&mutex_);
  if (completed_.count() < enqueued_) return {Code::kInProgress, "calls on the stream are running"};
  return TakeError();
}

namespace {

// The awaited work of the device often takes only a few kernels, so the thread polls often at
// first, then rarely.
constexpr Time kLookOften = 200 * kMicrosecond;
constexpr useconds_t kSeldom = 20;

}  // namespace

// Stream calls it for one position at a time, so positions are in the order of the device's stream.
Result<uint64_t> DeviceStream::EnqueueNext() {
  {
    const MutexLock lock(&mutex_);
    completed_.Take();
  }
  Status status =
      CatchOutOfMemory([&] { return order_->Append(static_cast<uint32_t>(enqueued_)); });
  if (status.ok()) return enqueued_++;
  const MutexLock lock(&mutex_);
  completed_.Untake();
  return status;
}

bool DeviceStream::WaitFor(uint64_t position, const GiveUp& give_up) {
  const auto number = static_cast<uint32_t>(position);
  const Time start = SystemClock().Now();
  Standstill standstill;
  while (!order_->Reached(number)) {
    if (SystemClock().Now() - start < kLookOften) {
      sched_yield();
      continue;
    }
    uint64_t left = 0;
    {
      const MutexLock lock(&mutex_);
      left = completed_.count();
    }
    const Time stalled = standstill.Look(left);
    if (give_up(left < position ? stalled : 0)) return false;
    usleep(kSeldom);
  }
  return true;
}

void DeviceStream::CompletePosition(uint64_t position, const Status& /*status*/) {
  const MutexLock lock(&mutex_);
  completed_.Complete(position);
  // A position that completes before earlier ones must not release the device past them.
  if (completed_.count() > 0) order_->Finish(static_cast<uint32_t>(completed_.count() - 1));
}

Result<std::shared_ptr<Stream>> DeviceStreamOf(Device* device, void* stream) {
  Result<uint64_t> id = device->IdOf(stream);
  if (!id.ok()) return id.status();
  static Mutex mutex;
  // Never destroyed, because calls may be in progress when the process ends.
  static auto* const streams INCCL_PT_GUARDED_BY(mutex) =
      new std::map<std::pair<Device*, uint64_t>, std::shared_ptr<Stream>>;
  const auto known = [&]() -> std::shared_ptr<Stream> {
    const MutexLock lock(&mutex);
    const auto found = streams->find({device, *id});
    return found == streams->end() ? nullptr : found->second;
  }();
  if (known != nullptr) return known;
  // Without the mutex: the driver may wait for a stream, and other streams' calls for this thread.
  Result<std::unique_ptr<DeviceOrder>> order = device->OrderOf(stream);
  if (!order.ok()) return order.status();
  auto made = std::make_shared<DeviceStream>(*std::move(order));
  const MutexLock lock(&mutex);
  return streams->try_emplace({device, *id}, std::move(made)).first->second;
}

}  // namespace inccl
