// SPDX-License-Identifier: Apache-2.0
#include "transport/poll_wakeup_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

namespace inccl {
namespace {

constexpr Time kBlindSleep = 100 * kMicrosecond;  // if a transport cannot wake this rank
constexpr Time kLongestWait = 3600 * kSecond;

}  // namespace

Result<std::unique_ptr<PollWakeupEvent>> PollWakeupEvent::Create(
    std::vector<WakeupSource*> sources) {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return SystemErrorErrno("eventfd", errno);
  return std::unique_ptr<PollWakeupEvent>(new PollWakeupEvent(std::move(sources), std::move(fd)));
}

PollWakeupEvent::PollWakeupEvent(std::vector<WakeupSource*> sources, UniqueFd signal_fd)
    : sources_(std::move(sources)), signal_fd_(std::move(signal_fd)) {
  for (const WakeupSource* source : sources_) {
    fds_.push_back({.fd = source->fd(), .events = POLLIN, .revents = 0});
    blind_ = blind_ || source->fd() < 0;
  }
  fds_.push_back({.fd = signal_fd_.get(), .events = POLLIN, .revents = 0});
}

uint32_t PollWakeupEvent::Arm() {
  const uint32_t token = signals_.load(std::memory_order_seq_cst);
  armed_.store(true, std::memory_order_seq_cst);
  for (WakeupSource* source : sources_) source->Arm();
  return token;
}

void PollWakeupEvent::Wait(uint32_t token, Time timeout) {
  for (pollfd& fd : fds_) fd.revents = 0;
  const bool sleeps =
      timeout > 0 && signals_.load(std::memory_order_seq_cst) == token &&
      std::all_of(sources_.begin(), sources_.end(), [](WakeupSource* s) { return s->Ready(); });
  if (sleeps) Sleep(timeout);
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i]->Disarm(fds_[i].revents != 0);
  armed_.store(false, std::memory_order_seq_cst);
}

void PollWakeupEvent::Sleep(Time timeout) {
  timeout = std::min(timeout, blind_ ? kBlindSleep : kLongestWait);
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(timeout / kSecond);
  relative.tv_nsec = static_cast<decltype(relative.tv_nsec)>(timeout % kSecond);
  if (ppoll(fds_.data(), fds_.size(), &relative, nullptr) > 0 && fds_.back().revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(signal_fd_.get(), &count, sizeof count);
  }
}

void PollWakeupEvent::Disarm() {
  for (WakeupSource* source : sources_) source->Disarm(false);
  armed_.store(false, std::memory_order_seq_cst);
}

void PollWakeupEvent::Signal() {
  signals_.fetch_add(1, std::memory_order_seq_cst);
  if (!armed_.load(std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(signal_fd_.get(), &one, sizeof one);
}

}  // namespace inccl
