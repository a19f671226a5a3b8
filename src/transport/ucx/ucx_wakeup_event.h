// SPDX-License-Identifier: Apache-2.0
//
// Sleeps on a UCX worker and on signals of this process at once. Wait arms the worker after the
// owner's last look; the worker refuses if anything has arrived since, so no wake-up is lost.
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
  int refusals_ = 0;  // consecutive refusals of the worker to be armed
  std::atomic<uint32_t> rings_{0};
  std::atomic<bool> armed_{false};
};

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WAKEUP_EVENT_H_
