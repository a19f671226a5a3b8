// SPDX-License-Identifier: Apache-2.0
#include "stream/stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace inccl {
namespace {

constexpr std::chrono::milliseconds kAskAgain{20};
// Between two looks at a standstill: not waiting, but kept from running.
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

Result<uint64_t> Stream::EnterLocked(const User& user) {
  Result<uint64_t> place(OutOfMemory());
  (void)CatchOutOfMemory([&] {
    {
      const std::lock_guard lock(users_mutex_);
      users_[next_place_] = user;
    }
    place = TakePlace();
    return Status::Ok();
  });
  const std::lock_guard lock(users_mutex_);
  if (place.ok()) {
    ++next_place_;
  } else {
    users_.erase(next_place_);
  }
  return place;
}

Result<uint64_t> Stream::Enter(const User& user) {
  const std::lock_guard lock(entering_);
  return EnterLocked(user);
}

std::vector<Result<uint64_t>> Stream::EnterAll(const std::vector<Stream*>& streams,
                                               const std::vector<User>& users) {
  std::vector<Stream*> sorted = streams;
  std::sort(sorted.begin(), sorted.end(), std::less<>());
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(sorted.size());
  for (Stream* stream : sorted) locks.emplace_back(stream->entering_);
  std::vector<Result<uint64_t>> places;
  places.reserve(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) places.push_back(streams[i]->EnterLocked(users[i]));
  return places;
}

void Stream::Leave(uint64_t place, const Status& status) {
  {
    const std::lock_guard lock(users_mutex_);
    users_.erase(place);
  }
  LeavePlace(place, status);
}

std::string Stream::Before(uint64_t place) const {
  const std::lock_guard lock(users_mutex_);
  const auto first = users_.begin();
  return first == users_.end() || first->first >= place ? "none" : *first->second;
}

Result<uint64_t> HostStream::TakePlace() {
  const std::lock_guard lock(mutex_);
  left_.Take();
  return entered_++;
}

bool HostStream::WaitTurn(uint64_t place, const GiveUp& give_up) {
  Standstill standstill;
  std::unique_lock lock(mutex_);
  while (left_.count() < place) {
    const Time stalled = standstill.Look(left_.count());
    lock.unlock();
    if (give_up(stalled)) return false;
    lock.lock();
    if (left_.count() < place) changed_.wait_for(lock, kAskAgain);
  }
  return true;
}

void HostStream::LeavePlace(uint64_t place, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
  left_.Leave(place);
  changed_.notify_all();
}

Status HostStream::TakeError() { return std::exchange(error_, Status::Ok()); }

Status HostStream::Synchronize() {
  std::unique_lock lock(mutex_);
  const uint64_t until = entered_;
  changed_.wait(lock, [&] { return left_.count() >= until; });
  return TakeError();
}

Status HostStream::Query() {
  const std::lock_guard lock(mutex_);
  if (left_.count() < entered_) return {Code::kInProgress, "calls on the stream are running"};
  return TakeError();
}

}  // namespace inccl
