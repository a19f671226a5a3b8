// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <utility>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"

namespace inccl {

std::string CheckLogFileName(std::string_view name) {
  for (size_t i = name.find('%'); i != std::string_view::npos; i = name.find('%', i + 2)) {
    const std::string_view key = name.substr(i, 2);
    if (key == "%h" || key == "%p" || key == "%%") continue;
    std::string why = fmt::format("a name with \"{}\"", key);
    if (key == "%r") why += ", but the file is opened before the process has a rank";
    return why;
  }
  return "";
}

Result<UniqueFd> OpenLogFile(const std::string& name) {
  const std::string what = fmt::format("INCCL_DEBUG_FILE: {}", name);
  UniqueFd fd(open(name.c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
                   0600));
  if (!fd.valid() && errno == ELOOP) {
    return SystemError(fmt::format("{}: symbolic links are not followed", what));
  }
  if (!fd.valid()) return SystemErrorErrno(what, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemErrorErrno(what, errno);
  if (!S_ISREG(info.st_mode)) return SystemError(fmt::format("{}: not a regular file", what));
  if (info.st_uid != geteuid()) {
    return SystemError(
        fmt::format("{}: belongs to uid {}, not to uid {}", what, info.st_uid, geteuid()));
  }
  if (info.st_nlink > 1) {
    return SystemError(fmt::format("{}: has {} names (hard links)", what, info.st_nlink));
  }
  return fd;
}

namespace internal {
std::atomic<int> log_level{0};
std::atomic<uint32_t> log_subsystems{kDefaultLogSubsystems};
}  // namespace internal

namespace {

constexpr std::pair<std::string_view, LogLevel> kLevels[] = {{"VERSION", LogLevel::kVersion},
                                                             {"WARN", LogLevel::kWarn},
                                                             {"INFO", LogLevel::kInfo},
                                                             {"TRACE", LogLevel::kTrace}};

constexpr std::pair<std::string_view, uint32_t> kSubsystems[] = {
    {"INIT", static_cast<uint32_t>(LogSubsystem::kInit)},
    {"BOOTSTRAP", static_cast<uint32_t>(LogSubsystem::kBootstrap)},
    {"ENV", static_cast<uint32_t>(LogSubsystem::kEnv)},
    {"TRANSPORT", static_cast<uint32_t>(LogSubsystem::kTransport)},
    {"CONTROL", static_cast<uint32_t>(LogSubsystem::kControl)},
    {"COLL", static_cast<uint32_t>(LogSubsystem::kCollectives)},
    {"CODEC", static_cast<uint32_t>(LogSubsystem::kCodec)},
    {"TUNING", static_cast<uint32_t>(LogSubsystem::kTuning)},
    {"ALL", kAllLogSubsystems}};

std::atomic<LogFunction> log_function{nullptr};

bool SameWord(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'a' && a[i] <= 'z' ? static_cast<char>(a[i] - 'a' + 'A') : a[i];
    if (c != b[i]) return false;
  }
  return true;
}

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  return Escaped(name);
}

// Of a name that CheckLogFileName takes.
std::string ExpandFileName(const std::string& file) {
  std::string expanded;
  for (size_t i = 0; i < file.size(); ++i) {
    const char key = file[i] == '%' ? file[++i] : '\0';
    if (key == 'h') {
      expanded += HostName();
    } else if (key == 'p') {
      expanded += std::to_string(getpid());
    } else {
      expanded += file[i];
    }
  }
  return expanded;
}

// Never destroyed: threads may still log while the process exits.
struct Sink {
  Mutex mutex;
  const std::string host = HostName();
  std::string file INCCL_GUARDED_BY(mutex);
  UniqueFd fd INCCL_GUARDED_BY(mutex);              // not valid: stderr
  uint64_t dropped INCCL_GUARDED_BY(mutex) = 0;     // lines since the last one that was written
  bool complained INCCL_GUARDED_BY(mutex) = false;  // on stderr, that the file takes no line
};

Sink& GlobalSink() {
  static NoDestructor<Sink> sink;
  return *sink;
}

// A pipe takes a write of up to this size completely or not at all.
constexpr size_t kMostLineBytes = PIPE_BUF;
constexpr std::string_view kCut = "...";

// Opens the same file or terminal non-blocking. Setting the flag on `fd` itself would affect the
// processes that share it, e.g. this process's parent.
UniqueFd OpenAgain(int fd) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return UniqueFd(open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

// Writes without waiting for a reader. Returns false, with errno, if not all bytes have been
// written.
bool WriteNow(int fd, std::string_view text) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return false;
  const bool socket = S_ISSOCK(info.st_mode);
  UniqueFd again;
  const int flags = fcntl(fd, F_GETFL);
  if (!S_ISREG(info.st_mode) && !socket && flags >= 0 && (flags & O_NONBLOCK) == 0) {
    again = OpenAgain(fd);
    if (!again.valid() && errno == ENXIO) return false;  // a pipe without a reader
    pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
    // POLLOUT means room for a whole line, unless another writer fills it first.
    if (!again.valid() && poll(&room, 1, 0) != 1) return false;
  }
  while (!text.empty()) {
    const ssize_t written = socket
                                ? send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                : write(again.valid() ? again.get() : fd, text.data(), text.size());
    if (written == 0) errno = ENOSPC;
    if (written <= 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

// Writes without raising SIGPIPE (the log's reader has gone) or SIGXFSZ (the log file has reached
// the limit of a file's size) in the process. Returns false, with errno, if the line is not there.
bool WriteQuietly(int fd, std::string_view text) {
  sigset_t ours, old, pending;
  sigemptyset(&ours);
  sigaddset(&ours, SIGPIPE);
  sigaddset(&ours, SIGXFSZ);
  sigemptyset(&pending);
  sigpending(&pending);
  if (pthread_sigmask(SIG_BLOCK, &ours, &old) != 0) return false;
  const bool written = WriteNow(fd, text);
  const int error = errno;
  const int raised = written ? 0 : error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
  if (raised != 0 && sigismember(&pending, raised) != 1) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, raised);
    const timespec now{};
    sigtimedwait(&only, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  errno = error;
  return written;
}

std::string LineOf(const Sink& sink, LogLevel level, std::string_view text) {
  std::string line = fmt::format("{}:{}:{} inccl {} ", sink.host, getpid(), syscall(SYS_gettid),
                                 kLevels[static_cast<int>(level) - 1].first);
  line += Escaped(text);
  if (line.size() >= kMostLineBytes) {
    size_t end = kMostLineBytes - 1 - kCut.size();
    while ((line[end] & 0xC0) == 0x80) --end;  // do not split a UTF-8 character
    line.resize(end);
    line += kCut;
  }
  line += '\n';
  return line;
}

// Once per file: who reads stderr learns where the missing lines would be.
void ComplainAbout(Sink* sink, int error) INCCL_REQUIRES(sink->mutex) {
  if (!sink->fd.valid() || std::exchange(sink->complained, true)) return;
  char buffer[128];
  const std::string why = fmt::format("INCCL_DEBUG_FILE: {} takes no more lines: {} (errno {})",
                                      sink->file, strerror_r(error, buffer, sizeof buffer), error);
  (void)WriteQuietly(STDERR_FILENO, LineOf(*sink, LogLevel::kWarn, why));
}

}  // namespace

bool ParseLogLevel(std::string_view text, LogLevel* level) {
  if (text.empty() || SameWord(text, "NONE")) {
    *level = LogLevel::kNone;
    return true;
  }
  for (const auto& [name, value] : kLevels) {
    if (!SameWord(text, name)) continue;
    *level = value;
    return true;
  }
  return false;
}

bool ParseLogSubsystems(std::string_view text, uint32_t* mask, std::string* unknown) {
  if (text.empty()) {
    *mask = kDefaultLogSubsystems;
    return true;
  }
  const bool inverted = text.front() == '^';
  if (inverted) text.remove_prefix(1);
  uint32_t named = 0;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    bool found = false;
    for (const auto& [name, bits] : kSubsystems) {
      if (!SameWord(word, name)) continue;
      named |= bits;
      found = true;
    }
    if (!found) {
      *unknown = std::string(word);
      return false;
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  *mask = inverted ? kAllLogSubsystems & ~named : named;
  return true;
}

Status ConfigureLog(LogLevel level, uint32_t subsystems, const std::string& file) {
  Sink& sink = GlobalSink();
  Status status;
  {
    const MutexLock lock(&sink.mutex);
    if (file != sink.file) {
      UniqueFd fd;
      if (!file.empty()) {
        Result<UniqueFd> opened = OpenLogFile(ExpandFileName(file));
        status = opened.status();
        if (opened.ok()) fd = *std::move(opened);
      }
      sink.fd = std::move(fd);
      sink.file = sink.fd.valid() ? file : "";
      sink.dropped = 0;
      sink.complained = false;
    }
  }
  internal::log_subsystems.store(subsystems, std::memory_order_relaxed);
  internal::log_level.store(static_cast<int>(level), std::memory_order_relaxed);
  return status;
}

void SetLogFunction(LogFunction function) { log_function.store(function); }

void Log(LogLevel level, LogSubsystem subsystem, std::string_view text) noexcept try {
  if (level == LogLevel::kNone || !LogEnabled(level, subsystem)) return;
  if (const LogFunction function = log_function.load(); function != nullptr) {
    return function(kLevels[static_cast<int>(level) - 1].first.data(), Escaped(text).c_str());
  }
  Sink& sink = GlobalSink();
  const std::string line = LineOf(sink, level, text);
  const MutexLock lock(&sink.mutex);
  const int fd = sink.fd.valid() ? sink.fd.get() : STDERR_FILENO;
  if (sink.dropped > 0) {
    const std::string gap = LineOf(
        sink, LogLevel::kWarn,
        fmt::format("{} lines are missing here, as the log did not take them", sink.dropped));
    if (WriteQuietly(fd, gap)) sink.dropped = 0;
  }
  if (sink.dropped == 0 && WriteQuietly(fd, line)) return;
  if (sink.dropped++ == 0) ComplainAbout(&sink, errno);
} catch (const std::exception&) {
  // Out of memory: the line is dropped.
}

}  // namespace inccl
