// SPDX-License-Identifier: Apache-2.0
//
// Sleeps on a UCX worker and on rings of this process at once. The worker is armed in Wait, after
// the owner's last look, and refuses if anything has come since; so no wake-up is lost.
#ifndef INCCL_TRANSPORT_UCX_UCX_WAKEUP_EVENT_H_
#define INCCL_TRANSPORT_UCX_UCX_WAKEUP_EVENT_H_

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_worker.h"

namespace inccl::ucx {

class UcxWakeupEvent final : public WakeupEvent {
 public:
  // `worker` outlives it.
  explicit UcxWakeupEvent(Worker* worker) : worker_(worker) {}
  Status Open();

  uint32_t Arm() override;
  void Wait(uint32_t token, Time timeout) override;
  void Disarm() override;
  void Signal() override;

 private:
  void Sleep(Time timeout);

  Worker* worker_;
  UniqueFd ring_fd_;
  int refusals_ = 0;  // of the worker to be armed, in a row
  std::atomic<uint32_t> rings_{0};
  std::atomic<bool> armed_{false};
};

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WAKEUP_EVENT_H_
