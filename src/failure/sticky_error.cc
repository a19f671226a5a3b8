// SPDX-License-Identifier: Apache-2.0
#include "failure/sticky_error.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"

namespace inccl {
namespace {

bool IsFatal(uint32_t code) {
  return code >= 1 && code <= static_cast<uint32_t>(Code::kTimeout) &&
         code != static_cast<uint32_t>(Code::kInvalidArgument) &&
         code != static_cast<uint32_t>(Code::kInProgress);
}

}  // namespace

// The layout is ByteWriter's: U32 code, then a string.
size_t WriteNotice(const Status& error, std::span<std::byte> body) {
  const auto put = [&](size_t at, size_t value) {
    for (size_t i = 0; i < 4; ++i) body[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  constexpr size_t kText = 8;
  const std::string_view text = std::string_view(error.message()).substr(0, body.size() - kText);
  put(0, static_cast<size_t>(error.code()));
  put(4, text.size());
  std::memcpy(body.data() + kText, text.data(), text.size());
  return kText + text.size();
}

Status ReadNotice(std::span<const std::byte> body) {
  ByteReader reader(body);
  uint32_t code = 0;
  std::string text;
  if (!reader.U32(&code) || !reader.String(&text) || !IsFatal(code)) return Status::Ok();
  return {static_cast<Code>(code), Escaped(text)};
}

namespace {

// The notifying thread does not wait for the peers, but the system may keep it from running. Peers
// that see a disconnect before the notice would report a rank that left too early. The limit covers
// the child of a fork, where the thread does not exist.
constexpr Time kNotifyLimit = 10 * kSecond;

[[noreturn]] void AbortProcess(const Status& error) {
  Log(LogLevel::kWarn, LogSubsystem::kCollectives, "INCCL_ABORT_ON_ERROR: {}", error.message());
  std::abort();
}

}  // namespace

Status StickyError::error() const {
  const MutexLock lock(&mutex_);
  return error_;
}

void StickyError::Attach(ControlPlane* control) {
  const MutexLock notifying(&notifying_);
  control_.store(control);
  if (failed()) Notify(error());
}

void StickyError::Begin() {
  const MutexLock notifying(&notifying_);
  begun_ = true;
  // A peer has failed after its own creation had succeeded.
  if (abort_on_error_ && failed()) AbortProcess(error());
}

void StickyError::Set(const Status& status, const Status& tell, Origin origin) {
  if (failed()) return;
  const MutexLock notifying(&notifying_);
  {
    const MutexLock lock(&mutex_);
    if (failed_.load()) return;
    error_ = status;
    failed_.store(true, std::memory_order_release);
  }
  Notify(tell);
  if (abort_on_error_ && origin == Origin::kFailure && begun_) AbortProcess(status);
  if (wakeup_event_ != nullptr) wakeup_event_->Signal();
}

void StickyError::Notify(const Status& status) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  std::array<std::byte, kMostNotifiedBytes> body;
  control->SendToNeighbours(kNoticeKind, std::span(body).first(WriteNotice(status, body)));
}

void StickyError::WaitFailed(Time limit) const {
  constexpr useconds_t kLook = 100;
  const Time end = SystemClock().Now() + limit;
  while (!failed() && SystemClock().Now() < end) usleep(kLook);
}

// The caller's thread returns from its call as soon as it sees the error. It may then destroy the
// communicator while the thread that found the error still notifies the peers.
void StickyError::WaitNotified() {
  constexpr useconds_t kLook = 100;
  for (const Time end = SystemClock().Now() + kNotifyLimit; SystemClock().Now() < end;
       usleep(kLook)) {
    if (!notifying_.TryLock()) continue;
    notifying_.Unlock();
    return;
  }
}

}  // namespace inccl
