// SPDX-License-Identifier: Apache-2.0
#include "control/loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace inccl::control {
namespace {

constexpr uint64_t kEventTag = 0;  // members count from 1

uint64_t Pack(uint64_t member, uint32_t tag) { return member << 32 | tag; }

void Ring(int event_fd) {
  const uint64_t one = 1;
  while (write(event_fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

// The timeout for epoll_wait, rounded up.
int Milliseconds(Time until) {
  if (until == kNever) return -1;
  const Time left = until - SystemClock().Now();
  return left <= 0 ? 0 : static_cast<int>(std::min<Time>(left / kMillisecond + 1, 1000 * 3600));
}

// Catches a handler's out of memory, because the thread serves other communicators, too.
template <typename Function>
void Call(Function&& function) {
  try {
    function();
  } catch (const std::exception& e) {
    Log(LogLevel::kWarn, LogSubsystem::kControl, "control thread: {}", e.what());
  }
}

}  // namespace

Loop& Loop::Get() {
  static NoDestructor<Loop> loop;
  return *loop;
}

bool Loop::InOwnProcess() const { return pid_ == getpid(); }

Status Loop::CheckProcess() const {
  if (pid_ == 0 || InOwnProcess()) return Status::Ok();
  return InvalidUsage(
      "this process was forked from one that had communicators; it may only exit or exec");
}

Result<uint64_t> Loop::Join(std::shared_ptr<Member> member) {
  if (Status status = CheckProcess(); !status.ok()) return status;
  const MutexLock lifecycle(&lifecycle_mutex_);
  uint64_t id = 0;
  {
    const MutexLock lock(&mutex_);
    id = next_member_++;
    members_[id].member = std::move(member);  // may throw, so before the thread starts
  }
  if (thread_.joinable()) return id;
  Status status = CatchOutOfMemory([&] {
    lifecycle_mutex_.AssertHeld();
    return Start();
  });
  if (status.ok()) return id;
  epoll_.Reset();
  event_.Reset();
  const MutexLock lock(&mutex_);
  members_.erase(id);
  return status;
}

void Loop::Leave(uint64_t member) {
  const MutexLock lifecycle(&lifecycle_mutex_);
  std::shared_ptr<Member> leaving;
  {
    const MutexLock lock(&mutex_);
    const auto found = members_.find(member);
    if (found == members_.end()) return;
    leaving = std::move(found->second.member);
    members_.erase(found);
    if (!members_.empty()) return;
  }
  Stop();
}

Status Loop::Start() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return SystemErrorErrno("epoll_create1", errno);
  event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return SystemErrorErrno("eventfd", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kEventTag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) != 0) {
    return SystemErrorErrno("epoll_ctl", errno);
  }
  {
    const MutexLock lock(&mutex_);
    stopping_ = false;
  }
  Result<std::thread> thread = StartThread(
      "inccl-control",
      [this, epoll_fd = epoll_.get(), event_fd = event_.get()] { Run(epoll_fd, event_fd); });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  pid_ = getpid();
  return Status::Ok();
}

void Loop::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    rung_ = false;
  }
  Ring(event_.get());
  thread_.join();
  pid_ = 0;
  epoll_.Reset();
  event_.Reset();
}

Status Loop::Watch(uint64_t member, uint32_t tag, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(member, tag);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemErrorErrno("epoll_ctl", errno);
  }
  return Status::Ok();
}

void Loop::ChangeEvents(uint64_t member, uint32_t tag, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(member, tag);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);  // cannot fail for a watched descriptor
}

void Loop::Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Loop::Wake(uint64_t member) {
  {
    const MutexLock lock(&mutex_);
    const auto found = members_.find(member);
    if (found == members_.end()) return;
    found->second.woken = true;
    if (std::exchange(rung_, true)) return;
    Ring(event_.get());  // under the lock, since Stop closes the descriptor after the last Leave
  }
}

std::shared_ptr<Member> Loop::Find(uint64_t member) {
  const MutexLock lock(&mutex_);
  const auto found = members_.find(member);
  return found == members_.end() ? nullptr : found->second.member;
}

void Loop::CallAt(uint64_t member, Time at) {
  const MutexLock lock(&mutex_);
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  found->second.at = std::min(found->second.at, at);
  Ring(event_.get());  // the thread may be sleeping beyond `at`
}

Time Loop::NextTime() {
  const MutexLock lock(&mutex_);
  Time next = kNever;
  for (const auto& [id, entry] : members_) next = std::min(next, entry.at);
  return next;
}

template <typename Take, typename Function>
void Loop::ForEach(Take&& take, Function&& call) {
  uint64_t last = 0;
  while (true) {
    std::shared_ptr<Member> member;
    {
      const MutexLock lock(&mutex_);
      auto next = members_.upper_bound(last);
      while (next != members_.end() && !take(&next->second)) ++next;
      if (next == members_.end()) return;
      last = next->first;
      member = next->second.member;
    }
    call(last, member.get());
  }
}

void Loop::CallThoseWoken() {
  {
    const MutexLock lock(&mutex_);
    if (!std::exchange(rung_, false)) return;
  }
  ForEach([](Entry* entry) { return std::exchange(entry->woken, false); },
          [](uint64_t, Member* member) { Call([&] { member->OnWake(); }); });
}

void Loop::CallThoseDue() {
  const Time now = SystemClock().Now();
  Time at = 0;
  ForEach(
      [&](Entry* entry) {
        if (entry->at > now) return false;
        at = std::exchange(entry->at, kNever);
        return true;
      },
      [&](uint64_t id, Member* member) {
        Time again = now + kSecond;  // if OnTime throws
        Call([&] { again = member->OnTime(now, now - at); });
        const MutexLock lock(&mutex_);
        const auto found = members_.find(id);
        if (found != members_.end()) found->second.at = std::min(found->second.at, again);
      });
}

void Loop::Run(int epoll_fd, int event_fd) {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()),
                                 Milliseconds(NextTime()));
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == kEventTag) {
        uint64_t rings = 0;
        while (read(event_fd, &rings, sizeof rings) < 0 && errno == EINTR) {
        }
        continue;
      }
      const std::shared_ptr<Member> member = Find(event.data.u64 >> 32);
      if (member == nullptr) continue;
      Call([&] { member->OnEvents(static_cast<uint32_t>(event.data.u64), event.events); });
    }
    {
      const MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    CallThoseWoken();
    CallThoseDue();  // after all arrived data has been read
  }
}

}  // namespace inccl::control
