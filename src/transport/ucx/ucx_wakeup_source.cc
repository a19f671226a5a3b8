// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_wakeup_source.h"

#include <sched.h>

namespace inccl::ucx {
namespace {

constexpr int kRefusals = 16;

}  // namespace

bool UcxWakeupSource::Ready() {
  if (worker_->has_news()) return false;
  if (worker_->wake_fd() >= 0 && !worker_->Arm()) {
    // Usually one Progress makes the worker accept. It refuses while something cannot be sent yet.
    if (++refusals_ > kRefusals) sched_yield();
    return false;
  }
  refusals_ = 0;
  return true;
}

}  // namespace inccl::ucx
