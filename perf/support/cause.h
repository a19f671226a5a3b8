// SPDX-License-Identifier: Apache-2.0
//
// Why a rank is missed: the launcher of a benchmark knows only that one is, the library which one.
#ifndef INCCL_PERF_SUPPORT_CAUSE_H_
#define INCCL_PERF_SUPPORT_CAUSE_H_

#include <chrono>
#include <string>
#include <thread>

#include "base/status.h"
#include "inccl/ccl.h"

namespace inccl::perf {

// In place of the kRemoteError of a World: the communicator's own error, which names the rank that
// failed. It may come a little later. Any other status, and one that quotes it, stays as it is.
inline Status WithCause(const Status& status, ccl_comm_t comm) {
  constexpr auto kLimit = std::chrono::seconds(2);
  if (status.code() != Code::kRemoteError || comm == nullptr) return status;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  ccl_result_t error = CCL_SUCCESS;
  while (ccl_comm_get_async_error(comm, &error) == CCL_SUCCESS && error == CCL_SUCCESS) {
    if (std::chrono::steady_clock::now() > end) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::string text = ccl_get_last_error(comm);
  if (status.message().find(text) != std::string::npos) return status;
  return {static_cast<Code>(error), text};
}

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_CAUSE_H_
