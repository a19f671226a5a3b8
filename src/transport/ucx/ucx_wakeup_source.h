// SPDX-License-Identifier: Apache-2.0
//
// Sleeps on a UCX worker. Ready arms the worker after the owner's last look; the worker refuses if
// anything has arrived since, so no wake-up is lost.
#ifndef INCCL_TRANSPORT_UCX_UCX_WAKEUP_SOURCE_H_
#define INCCL_TRANSPORT_UCX_UCX_WAKEUP_SOURCE_H_

#include "transport/ucx/ucx_worker.h"
#include "transport/wakeup_source.h"

namespace inccl::ucx {

class UcxWakeupSource final : public WakeupSource {
 public:
  // `worker` outlives it.
  explicit UcxWakeupSource(Worker* worker) : worker_(worker) {}
  int fd() const override { return worker_->wake_fd(); }
  bool Ready() override;

 private:
  Worker* worker_;
  int refusals_ = 0;  // consecutive refusals of the worker to be armed
};

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WAKEUP_SOURCE_H_
