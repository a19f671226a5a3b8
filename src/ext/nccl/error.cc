// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "ext/nccl/export.h"
#include "ext/nccl/library.h"
#include "ext/nccl/version.h"

namespace inccl::nccl {
namespace {

constexpr size_t kTextBytes = 1024;

// ncclGetLastError returns the text of the process's last warning. A reader in another thread may
// see a text that changes, but never one without an end: the last byte is never written.
pthread_mutex_t last_error_mutex = PTHREAD_MUTEX_INITIALIZER;
char last_error[kTextBytes];

void Keep(const char* text) {
  pthread_mutex_lock(&last_error_mutex);
  snprintf(last_error, sizeof last_error, "%s", text);
  pthread_mutex_unlock(&last_error_mutex);
}

Level LevelOf(const char* text) {
  if (strcasecmp(text, "VERSION") == 0) return Level::kVersion;
  if (strcasecmp(text, "WARN") == 0) return Level::kWarn;
  if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "ABORT") == 0 ||
      strcasecmp(text, "TRACE") == 0) {
    return Level::kInfo;
  }
  return Level::kNone;
}

Level ReadLevel() {
  for (const char* name : {"INCCL_DEBUG", "NCCL_DEBUG"}) {
    const char* const value = secure_getenv(name);
    if (value != nullptr && value[0] != '\0') return LevelOf(value);
  }
  return Level::kNone;
}

}  // namespace

Level DebugLevel() {
  static int known = -1;  // two threads may both find it out
  int level = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (level < 0) {
    level = static_cast<int>(ReadLevel());
    __atomic_store_n(&known, level, __ATOMIC_RELAXED);
  }
  return static_cast<Level>(level);
}

// Log scrapers look for "NCCL WARN" and "NCCL INFO".
void PrintLine(const char* level, const char* text) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  char line[kTextBytes + 160];
  const int length = snprintf(line, sizeof line, "%s:%d:%ld NCCL %s %s\n", host, getpid(),
                              syscall(SYS_gettid), level, text);
  if (length > 0) {
    const size_t bytes =
        static_cast<size_t>(length) < sizeof line ? static_cast<size_t>(length) : sizeof line - 1;
    (void)!write(STDERR_FILENO, line, bytes);
  }
}

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

ResultCode FromError(ccl_result_t result) {
  if (result == CCL_IN_PROGRESS) return CCL_IN_PROGRESS;
  const Library* const library = FindLibrary();
  if (library != nullptr) Keep(library->get_last_error(nullptr));
  if (result == CCL_TIMEOUT && ReportedVersion() < kFirstVersionWithTimeout) {
    return CCL_REMOTE_ERROR;
  }
  return result;
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

INCCL_NCCL_EXPORT(const char*, GetLastError, (inccl::nccl::Comm /*comm*/)) {
  return inccl::nccl::last_error;
}
