// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "ext/nccl/library.h"
#include "ext/nccl/policy.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {
namespace {

constexpr size_t kLineBytes = PIPE_BUF;  // a pipe takes so many completely or not at all
constexpr mode_t kMode = 0666;           // as fopen makes files

pthread_once_t opened = PTHREAD_ONCE_INIT;
int log_file = STDOUT_FILENO;
unsigned long dropped = 0;  // lines since the last one that was written

__attribute__((tls_model("initial-exec"))) thread_local int silent = 0;

Level LevelOf(const char* text) {
  if (strcasecmp(text, "VERSION") == 0) return Level::kVersion;
  if (strcasecmp(text, "WARN") == 0) return Level::kWarn;
  for (const char* more : {"INFO", "ABORT", "TRACE"}) {
    if (strcasecmp(text, more) == 0) return Level::kInfo;
  }
  return Level::kNone;
}

Level ReadLevel() {
  for (const char* name : {"INCCL_DEBUG", "NCCL_DEBUG"}) {
    if (const char* const value = Variable(name); value != nullptr) return LevelOf(value);
  }
  return Level::kNone;
}

void HostName(char (&host)[64]) {
  if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "localhost");
}

// Replaces %h, %p and %%. False with errno if the name becomes too long.
bool Expand(const char* name, char (&path)[PATH_MAX]) {
  size_t used = 0;
  for (; *name != '\0'; ++name) {
    char part[64] = {*name, '\0'};
    if (name[0] == '%' && (name[1] == 'h' || name[1] == 'p' || name[1] == '%')) {
      ++name;
      if (*name == 'h') HostName(part);
      if (*name == 'p') snprintf(part, sizeof part, "%d", getpid());
    }
    const size_t length = strlen(part);
    if (used + length >= sizeof path) {
      errno = ENAMETOOLONG;
      return false;
    }
    memcpy(path + used, part, length + 1);
    used += length;
  }
  errno = ENOENT;  // as for any empty name
  return used > 0;
}

// A FIFO is opened for reading, too: this neither waits for a reader nor fails without one.
int OpenPath(const char* path) {
  if (strcmp(path, "/dev/stdout") == 0) return STDOUT_FILENO;
  if (strcmp(path, "/dev/stderr") == 0) return STDERR_FILENO;
  struct stat info {};
  const bool fifo = stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
  return open(path,
              (fifo ? O_RDWR : O_WRONLY | O_CREAT | O_APPEND) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
              kMode);
}

// Writes without waiting. False if not all bytes have been written.
bool WriteNow(const char* line, size_t bytes) {
  struct stat info {};
  if (fstat(log_file, &info) != 0) return false;
  int again = -1;  // the same file, non-blocking; the flag of `log_file` is shared with processes
  if (!S_ISREG(info.st_mode) && !S_ISSOCK(info.st_mode)) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", log_file);
    again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (again < 0 && errno == ENXIO) return false;  // a pipe without a reader
    pollfd room{log_file, POLLOUT, 0};
    if (again < 0 && poll(&room, 1, 0) != 1) return false;
  }
  ssize_t written = 0;
  do {
    written = S_ISSOCK(info.st_mode) ? send(log_file, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                     : write(again >= 0 ? again : log_file, line, bytes);
  } while (written < 0 && errno == EINTR);
  const int error = errno;
  if (again >= 0) close(again);
  errno = error;
  return written == static_cast<ssize_t>(bytes);
}

// Without SIGPIPE, when the reader has gone, and SIGXFSZ, when the file has reached its limit.
bool WriteQuietly(const char* line, size_t bytes) {
  sigset_t ours, old, pending;
  sigemptyset(&ours);
  sigaddset(&ours, SIGPIPE);
  sigaddset(&ours, SIGXFSZ);
  sigemptyset(&pending);
  sigpending(&pending);
  if (pthread_sigmask(SIG_BLOCK, &ours, &old) != 0) return false;
  const bool written = WriteNow(line, bytes);
  const int raised = written ? 0 : errno == EPIPE ? SIGPIPE : errno == EFBIG ? SIGXFSZ : 0;
  if (raised != 0 && sigismember(&pending, raised) != 1) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, raised);
    const timespec now{};
    sigtimedwait(&only, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return written;
}

size_t MakeLine(char (&line)[kLineBytes], const char* level, const char* text) {
  char host[64];
  HostName(host);
  const int length = snprintf(line, sizeof line, "%s:%d:%ld NCCL %s %s\n", host, getpid(),
                              syscall(SYS_gettid), level, text);
  if (length < 0) return 0;
  if (static_cast<size_t>(length) < sizeof line) return static_cast<size_t>(length);
  snprintf(line + sizeof line - 5, 5, "...\n");
  return sizeof line - 1;
}

// Where NCCL cannot open its file, it writes to standard output.
void Open() {
  const char* name = Variable("INCCL_DEBUG_FILE");
  if (name == nullptr) name = Variable("NCCL_DEBUG_FILE");
  if (name == nullptr) return;
  char path[PATH_MAX];
  const int file = Expand(name, path) ? OpenPath(path) : -1;
  if (file >= 0) {
    log_file = file;
    return;
  }
  char text[kLineBytes], line[kLineBytes];
  snprintf(text, sizeof text, "NCCL_DEBUG_FILE: %.2000s cannot be opened: %.200s", name,
           strerror(errno));
  (void)WriteQuietly(line, MakeLine(line, "WARN", text));
}

void Write(const char* line, size_t bytes) {
  pthread_once(&opened, Open);
  if (silent > 0) return;
  // No mutex: the child of a fork would find it locked.
  unsigned long missing = __atomic_exchange_n(&dropped, 0, __ATOMIC_RELAXED);
  if (missing > 0) {
    char text[96], gap[kLineBytes];
    snprintf(text, sizeof text, "%lu lines are missing here, as the log was not read", missing);
    if (WriteQuietly(gap, MakeLine(gap, "WARN", text))) missing = 0;
  }
  if (missing > 0 || !WriteQuietly(line, bytes)) ++missing;
  __atomic_fetch_add(&dropped, missing, __ATOMIC_RELAXED);
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

void PrintLine(const char* level, const char* text) {
  char line[kLineBytes];
  Write(line, MakeLine(line, level, text));
}

void PrintPlain(const char* text) {
  char line[kLineBytes];
  const int length = snprintf(line, sizeof line, "%s\n", text);
  if (length > 0 && static_cast<size_t>(length) < sizeof line) {
    Write(line, static_cast<size_t>(length));
  }
}

Silence::Silence() { ++silent; }
Silence::~Silence() { --silent; }

}  // namespace inccl::nccl

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

namespace inccl::nccl {
namespace {

constexpr int kRunning = -1;  // of `compressed`, which libinccl writes last
constexpr int kPlaces = 1024;

struct Account {
  uint64_t calls, bytes;
  uint64_t measured;   // calls whose places have been read
  double sent, saved;  // bytes of these
  double bound;        // the greatest
};

struct Place {
  ccl_compression_stats_t stats;
  Comm comm;  // NULL: the place is free
  int account;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Account accounts[kAccounts];
Place places[kPlaces];
int next_place = 0;

// Reads and frees the place of a call that has completed. The caller holds the mutex.
void Collect(Place* place) {
  if (place->comm == nullptr) return;
  if (__atomic_load_n(&place->stats.compressed, __ATOMIC_ACQUIRE) == kRunning) return;
  const ccl_compression_stats_t& stats = place->stats;
  Account& account = accounts[place->account];
  const auto payload = static_cast<double>(stats.payload_bytes);
  ++account.measured;
  account.sent += payload;
  account.saved += payload * (stats.ratio - 1);
  if (!(stats.error_bound <= account.bound)) account.bound = stats.error_bound;
  place->comm = nullptr;
}

}  // namespace

bool Logging() {
  const char* const value = secure_getenv("INCCL_NCCL_LOG");
  return value != nullptr && strcmp(value, "1") == 0;
}

void CountCall(int account, uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  ++accounts[account].calls;
  accounts[account].bytes += bytes;
  pthread_mutex_unlock(&mutex);
}

ccl_compression_stats_t* TakeStats(int account, Comm comm) {
  if (comm == nullptr) return nullptr;
  ccl_compression_stats_t* stats = nullptr;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kPlaces && stats == nullptr; ++i) {
    Place& place = places[next_place];
    next_place = (next_place + 1) % kPlaces;
    Collect(&place);
    if (place.comm != nullptr) continue;
    place.stats = CCL_COMPRESSION_STATS_INIT;
    place.stats.compressed = kRunning;
    place.comm = comm;
    place.account = account;
    stats = &place.stats;
  }
  pthread_mutex_unlock(&mutex);
  return stats;
}

void DropStats(ccl_compression_stats_t* stats) {
  if (stats == nullptr) return;
  pthread_mutex_lock(&mutex);
  reinterpret_cast<Place*>(stats)->comm = nullptr;  // the first member
  pthread_mutex_unlock(&mutex);
}

void DropStatsOf(Comm comm) {
  pthread_mutex_lock(&mutex);
  for (Place& place : places) {
    if (place.comm != comm) continue;
    Collect(&place);
    place.comm = nullptr;
  }
  pthread_mutex_unlock(&mutex);
}

void PrintAccount(int account, const char* title, bool always) {
  pthread_mutex_lock(&mutex);
  for (Place& place : places) {
    if (place.account == account) Collect(&place);
  }
  const Account sum = accounts[account];
  pthread_mutex_unlock(&mutex);
  if (sum.calls == 0 && !always) return;
  char text[768];
  const int length = snprintf(text, sizeof text, "%s: %llu calls of %llu bytes", title,
                              static_cast<unsigned long long>(sum.calls),
                              static_cast<unsigned long long>(sum.bytes));
  if (sum.measured > 0 && length > 0 && static_cast<size_t>(length) < sizeof text) {
    const auto left = sizeof text - static_cast<size_t>(length);
    char* const end = text + length;
    const int more = snprintf(end, left, "; sent %.0f bytes, saved %.0f, error at most %.3g",
                              sum.sent, sum.saved, sum.bound);
    if (sum.measured < sum.calls && more > 0 && static_cast<size_t>(more) < left) {
      snprintf(end + more, left - static_cast<size_t>(more), " (%llu calls)",
               static_cast<unsigned long long>(sum.measured));
    }
  }
  PrintLine("INFO", text);
}

}  // namespace inccl::nccl
