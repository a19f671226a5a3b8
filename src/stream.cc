// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <chrono>
#include <utility>

namespace inccl {
namespace {

constexpr std::chrono::milliseconds kAskAgain{20};

}  // namespace

Result<uint64_t> HostStream::Enter() {
  const std::lock_guard lock(mutex_);
  left_.Take();
  return entered_++;
}

bool HostStream::WaitTurn(uint64_t place, const std::function<bool()>& give_up) {
  std::unique_lock lock(mutex_);
  while (left_.count() < place) {
    if (give_up()) return false;
    changed_.wait_for(lock, kAskAgain);
  }
  return true;
}

void HostStream::Leave(uint64_t place, const Status& status) {
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
