// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ext/nccl/export.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/version.h"

namespace inccl::nccl {
namespace {

constexpr size_t kTextBytes = 1024;

// The text of the process's last warning. ncclGetLastError returns a copy, which is the asking
// thread's until it asks again.
pthread_mutex_t last_error_mutex = PTHREAD_MUTEX_INITIALIZER;
char last_error[kTextBytes];
thread_local char last_error_asked[kTextBytes];

void Keep(const char* text) {
  pthread_mutex_lock(&last_error_mutex);
  snprintf(last_error, sizeof last_error, "%s", text);
  pthread_mutex_unlock(&last_error_mutex);
}

const char* LastErrorOfProcess() {
  pthread_mutex_lock(&last_error_mutex);
  memcpy(last_error_asked, last_error, sizeof last_error);
  pthread_mutex_unlock(&last_error_mutex);
  return last_error_asked;
}

}  // namespace

void Warn(const char* format, ...) {
  char text[kTextBytes];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Keep(text);
  if (DebugLevel() >= Level::kWarn) PrintLine("WARN", text);
}

void Info(const char* format, ...) {
  if (DebugLevel() < Level::kInfo) return;
  char text[kTextBytes];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  PrintLine("INFO", text);
}

ResultCode FromErrorOf(Comm comm, ccl_result_t error) {
  if (const Library* const library = FindLibrary(); library != nullptr) {
    Keep(library->get_last_error(comm));
  }
  const bool unknown = error == CCL_TIMEOUT && ReportedVersion() < kFirstVersionWithTimeout;
  return unknown ? CCL_REMOTE_ERROR : error;
}

ResultCode FromError(ccl_result_t result) {
  return result == CCL_IN_PROGRESS ? CCL_IN_PROGRESS : FromErrorOf(nullptr, result);
}

}  // namespace inccl::nccl

INCCL_NCCL_EXPORT(const char*, GetErrorString, (int result)) {
  switch (result) {
    case CCL_SUCCESS: return "no error";
    case CCL_UNHANDLED_CUDA_ERROR:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case CCL_SYSTEM_ERROR: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case CCL_INTERNAL_ERROR:
      return "internal error - please report this issue to the NCCL developers";
    case CCL_INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case CCL_INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case CCL_REMOTE_ERROR: return "remote process exited or there was a network error";
    case CCL_IN_PROGRESS: return "NCCL operation in progress";
    case CCL_TIMEOUT: return "timeout";
    default: return "unknown result code";
  }
}

// NCCL ignores `comm`. Here a communicator that has failed has a text of its own.
INCCL_NCCL_EXPORT(const char*, GetLastError, (inccl::nccl::Comm comm)) {
  const inccl::nccl::Library* const library =
      comm == nullptr ? nullptr : __atomic_load_n(&inccl::nccl::opened_library, __ATOMIC_ACQUIRE);
  ccl_result_t state = CCL_SUCCESS;
  if (library != nullptr && library->comm_get_async_error(comm, &state) == CCL_SUCCESS &&
      state != CCL_SUCCESS && state != CCL_IN_PROGRESS) {
    return library->get_last_error(comm);
  }
  return inccl::nccl::LastErrorOfProcess();
}
