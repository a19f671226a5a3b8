// SPDX-License-Identifier: Apache-2.0
#include "transport/mapped/wakeup.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace inccl::mapped {
namespace {

constexpr Time kLongestWait = 3600 * kSecond;  // then a spurious wake-up

// The kernel reads the word itself, so this is an access to the atomic's representation.
uint32_t* Word(std::atomic<uint32_t>* word) { return reinterpret_cast<uint32_t*>(word); }

int Flags(FutexScope scope) { return scope == FutexScope::kProcess ? FUTEX_PRIVATE_FLAG : 0; }

void FutexWake(WakeupArea* wakeup, FutexScope scope) {
  syscall(SYS_futex, Word(&wakeup->counter), FUTEX_WAKE | Flags(scope), INT_MAX, nullptr, nullptr,
          0);
}

}  // namespace

void SignalWakeup(WakeupArea* wakeup, FutexScope scope, int event_fd) {
  const uint32_t sleeping = wakeup->sleeping.exchange(kAwake, std::memory_order_seq_cst);
  if (sleeping == kAwake) return;  // another one wakes it
  if (sleeping == kSleepsOnEventFd) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(event_fd, &one, sizeof one);
    return;
  }
  wakeup->counter.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(wakeup, scope);
}

uint32_t FutexWakeupEvent::Arm() {
  const uint32_t token = area_->counter.load(std::memory_order_seq_cst);
  area_->sleeping.store(kSleepsOnFutex, std::memory_order_seq_cst);
  return token;
}

void FutexWakeupEvent::Wait(uint32_t token, Time timeout) {
  if (timeout > 0) {
    timeout = std::min(timeout, kLongestWait);
    timespec relative{};
    relative.tv_sec = static_cast<time_t>(timeout / kSecond);
    relative.tv_nsec = static_cast<decltype(relative.tv_nsec)>(timeout % kSecond);
    syscall(SYS_futex, Word(&area_->counter), FUTEX_WAIT | Flags(scope_), token, &relative, nullptr,
            0);
  }
  Disarm();
}

void FutexWakeupEvent::Disarm() { area_->sleeping.store(kAwake, std::memory_order_seq_cst); }

// Increments unconditionally, so the caller may publish its work with any memory order: a token
// read before the increment differs, and one read after it has acquired the work.
void FutexWakeupEvent::Signal() {
  area_->counter.fetch_add(1, std::memory_order_seq_cst);
  if (area_->sleeping.load(std::memory_order_seq_cst) != 0) FutexWake(area_, scope_);
}

void EventFdWakeupSource::Disarm(bool readable) {
  area_->sleeping.store(kAwake, std::memory_order_seq_cst);
  if (!readable) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof count);
}

}  // namespace inccl::mapped
