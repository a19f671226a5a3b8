// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_wakeup_event.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace inccl::ucx {
namespace {

constexpr Time kBlindSleep = 100 * kMicrosecond;  // if UCX cannot wake this rank
constexpr Time kLongestWait = 3600 * kSecond;
constexpr int kRefusals = 16;

}  // namespace

Status UcxWakeupEvent::Open() {
  ring_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return ring_fd_.valid() ? Status::Ok() : SystemErrorErrno("ucx: eventfd", errno);
}

uint32_t UcxWakeupEvent::Arm() {
  const uint32_t token = rings_.load(std::memory_order_seq_cst);
  armed_.store(true, std::memory_order_seq_cst);
  return token;
}

// A Signal after the load of rings_ finds armed_ set and makes the descriptor readable.
void UcxWakeupEvent::Wait(uint32_t token, Time timeout) {
  if (timeout > 0 && rings_.load(std::memory_order_seq_cst) == token) Sleep(timeout);
  Disarm();
}

void UcxWakeupEvent::Sleep(Time timeout) {
  if (worker_->has_news()) return;
  timeout = std::min(timeout, kLongestWait);
  pollfd fds[2] = {{.fd = ring_fd_.get(), .events = POLLIN, .revents = 0},
                   {.fd = worker_->wake_fd(), .events = POLLIN, .revents = 0}};
  if (worker_->wake_fd() < 0) {
    timeout = std::min(timeout, kBlindSleep);
  } else if (!worker_->Arm()) {
    // Usually one Progress makes the worker accept. It refuses while something cannot be sent yet.
    if (++refusals_ > kRefusals) sched_yield();
    return;
  }
  refusals_ = 0;
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(timeout / kSecond);
  relative.tv_nsec = static_cast<decltype(relative.tv_nsec)>(timeout % kSecond);
  if (ppoll(fds, 2, &relative, nullptr) > 0 && fds[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(ring_fd_.get(), &count, sizeof count);
  }
}

void UcxWakeupEvent::Disarm() { armed_.store(false, std::memory_order_seq_cst); }

void UcxWakeupEvent::Signal() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (!armed_.load(std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(ring_fd_.get(), &one, sizeof one);
}

}  // namespace inccl::ucx
