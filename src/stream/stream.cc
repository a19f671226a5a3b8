// SPDX-License-Identifier: Apache-2.0
#include "stream/stream.h"

#include <algorithm>
#include <deque>
#include <utility>

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

}  // namespace inccl
