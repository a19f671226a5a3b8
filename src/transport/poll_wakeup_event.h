// SPDX-License-Identifier: Apache-2.0
//
// Sleeps on the descriptors of one or several transports and on signals of this process at once.
//
// No wake-up is lost. A peer's work is the sources' affair (WakeupSource). A Signal
// increments signals_ and then reads armed_; the owner stores armed_ and reads its token, looks for
// work, and compares signals_ with the token before it sleeps. All of these are sequentially
// consistent. If the comparison misses the increment, armed_ = true precedes it, so Signal finds
// armed_ set and makes signal_fd_ readable, which it stays until the owner reads it after a sleep.
#ifndef INCCL_TRANSPORT_POLL_WAKEUP_EVENT_H_
#define INCCL_TRANSPORT_POLL_WAKEUP_EVENT_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

// The part of a wait that belongs to one transport, where a rank sleeps on several descriptors at
// once.

// The owner calls Arm, looks once more for work, calls Ready, sleeps until a descriptor is readable
// and calls Disarm. It does not call Ready, or does not sleep, if the look has found work. Work
// that the look has not found makes Ready return false or the descriptor readable.
class WakeupSource {
 public:
  virtual ~WakeupSource() = default;
  // -1: the transport cannot wake a rank, which therefore sleeps for short times only.
  virtual int fd() const = 0;
  virtual void Arm() {}
  // False: the rank looks for work again instead of sleeping.
  virtual bool Ready() { return true; }
  // `readable`: the sleep has ended, and fd() is readable.
  virtual void Disarm(bool /*readable*/) {}
};

class PollWakeupEvent final : public WakeupEvent {
 public:
  // The sources outlive it.
  static Result<std::unique_ptr<PollWakeupEvent>> Create(std::vector<WakeupSource*> sources);

  uint32_t Arm() override;
  void Wait(uint32_t token, Time timeout) override;
  void Disarm() override;
  void Signal() override;

 private:
  PollWakeupEvent(std::vector<WakeupSource*> sources, UniqueFd signal_fd);
  void Sleep(Time timeout);

  const std::vector<WakeupSource*> sources_;
  const UniqueFd signal_fd_;  // an eventfd
  std::vector<pollfd> fds_;   // of the sources, then signal_fd_
  bool blind_ = false;        // a source has no descriptor
  std::atomic<uint32_t> signals_{0};
  std::atomic<bool> armed_{false};
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_POLL_WAKEUP_EVENT_H_
