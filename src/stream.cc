// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <chrono>
#include <utility>

namespace inccl {
namespace {

constexpr std::chrono::milliseconds kAskAgain{20};

}  // namespace

uint64_t Stream::Enter() {
  const std::lock_guard lock(mutex_);
  return entered_++;
}

bool Stream::WaitTurn(uint64_t place, const std::function<bool()>& give_up) {
  std::unique_lock lock(mutex_);
  while (left_ < place) {
    if (give_up()) return false;
    changed_.wait_for(lock, kAskAgain);
  }
  return true;
}

void Stream::Leave(uint64_t place, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
  left_early_.insert(place);
  while (!left_early_.empty() && *left_early_.begin() == left_) {
    left_early_.erase(left_early_.begin());
    ++left_;
  }
  changed_.notify_all();
}

Status Stream::TakeError() { return std::exchange(error_, Status::Ok()); }

Status Stream::Synchronize() {
  std::unique_lock lock(mutex_);
  const uint64_t until = entered_;
  changed_.wait(lock, [&] { return left_ >= until; });
  return TakeError();
}

Status Stream::Query() {
  const std::lock_guard lock(mutex_);
  if (left_ < entered_) return {Code::kInProgress, "calls on the stream are running"};
  return TakeError();
}

}  // namespace inccl
