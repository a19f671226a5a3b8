// SPDX-License-Identifier: Apache-2.0
//
// The error of a communicator: the first one stays, this rank's neighbours get a notice of it,
// which is the first error of those that have none and so reaches all ranks, and with
// abort_on_error it ends the process. Thread-safe.
#ifndef INCCL_FAILURE_STICKY_ERROR_H_
#define INCCL_FAILURE_STICKY_ERROR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "control/control.h"
#include "transport/transport.h"

namespace inccl {

// The message by which a rank notifies its peers of an error.

// Writes as much of the error as fits; returns the bytes written. Needs no memory, because missing
// memory may be the error.
size_t WriteNotice(const Status& error, std::span<std::byte> body);

// Reads what a peer has written, its text escaped. Returns OK if the bytes are no notice of a fatal
// error; errors of arguments concern one rank alone.
Status ReadNotice(std::span<const std::byte> body);

class StickyError {
 public:
  static constexpr uint8_t kNoticeKind = 2;  // of the control message (failure/sticky_error.h)

  // `wakeup_event` may be null.
  StickyError(bool abort_on_error, WakeupEvent* wakeup_event)
      : abort_on_error_(abort_on_error), wakeup_event_(wakeup_event) {}

  // Called after construction, because the control plane is created after its handler. Sends the
  // notice of an error that was there before.
  void Attach(ControlPlane* control) INCCL_EXCLUDES(notifying_, mutex_);
  // Marks the end of creation; earlier errors are errors of creation and do not end the process.
  void Begin() INCCL_EXCLUDES(notifying_, mutex_);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const std::atomic<bool>* failed_flag() const { return &failed_; }
  Status error() const INCCL_EXCLUDES(mutex_);

  enum class Origin : uint8_t { kFailure, kOnPurpose };  // kOnPurpose: never ends the process
  // Makes the error sticky unless there is one already. Peers get `tell`, which may differ from
  // this rank's `status`.
  void Set(const Status& status, const Status& tell, Origin origin)
      INCCL_EXCLUDES(notifying_, mutex_);

  // Returns when there is an error, or after `limit`.
  void WaitFailed(Time limit) const;
  // Called before the disconnect. Returns when the notice of an error, if there is one, has been
  // sent to all neighbours.
  void WaitNotified();

 private:
  void Notify(const Status& status) INCCL_REQUIRES(notifying_);

  const bool abort_on_error_;
  WakeupEvent* const wakeup_event_;
  std::atomic<ControlPlane*> control_{nullptr};
  std::atomic<bool> failed_{false};
  // Held from before failed_ becomes true until the peers have been notified. Taken after the
  // control plane's dispatch_mutex_, before its other mutexes.
  Mutex notifying_ INCCL_ACQUIRED_BEFORE(mutex_);
  bool begun_ INCCL_GUARDED_BY(notifying_) = false;
  mutable Mutex mutex_;
  Status error_ INCCL_GUARDED_BY(mutex_);
};

}  // namespace inccl

#endif  // INCCL_FAILURE_STICKY_ERROR_H_
