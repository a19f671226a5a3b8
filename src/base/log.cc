// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <exception>
#include <mutex>
#include <utility>

#include "base/escaped.h"
#include "base/log_file.h"

namespace inccl {
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

std::string ExpandFileName(const std::string& file) {
  std::string expanded;
  for (size_t i = 0; i < file.size(); ++i) {
    const char key = file[i] == '%' && i + 1 < file.size() ? file[i + 1] : '\0';
    if (key == 'h') {
      expanded += HostName();
    } else if (key == 'p') {
      expanded += std::to_string(getpid());
    } else {
      expanded += file[i];
    }
    if (key == 'h' || key == 'p' || key == '%') ++i;
  }
  return expanded;
}

// Never destroyed: threads may still log while the process exits.
struct Sink {
  std::mutex mutex;
  std::string host = HostName();
  std::string file;
  int fd = -1;  // -1: stderr
};

Sink& GlobalSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

// Writes all of it; a reader that has gone away is not a reason for a SIGPIPE to anybody.
void WriteQuietly(int fd, std::string_view text) {
  sigset_t pipe_only, old, pending;
  sigemptyset(&pipe_only);
  sigaddset(&pipe_only, SIGPIPE);
  sigemptyset(&pending);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  if (pthread_sigmask(SIG_BLOCK, &pipe_only, &old) != 0) return;
  bool broken = false;
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    broken = written < 0 && errno == EPIPE;
    if (written <= 0) break;
    text.remove_prefix(static_cast<size_t>(written));
  }
  const timespec now{};
  if (broken && !was_pending) sigtimedwait(&pipe_only, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
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
    const std::lock_guard lock(sink.mutex);
    if (file != sink.file) {
      int fd = -1;
      if (!file.empty()) {
        Result<UniqueFd> opened = OpenLogFile(ExpandFileName(file));
        status = opened.status();
        if (opened.ok()) fd = opened->Release();
      }
      if (sink.fd >= 0) close(sink.fd);
      sink.fd = fd;
      sink.file = fd < 0 ? "" : file;
    }
  }
  internal::log_subsystems.store(subsystems, std::memory_order_relaxed);
  internal::log_level.store(static_cast<int>(level), std::memory_order_relaxed);
  return status;
}

void Log(LogLevel level, LogSubsystem subsystem, std::string_view text) noexcept try {
  if (level == LogLevel::kNone || !LogEnabled(level, subsystem)) return;
  Sink& sink = GlobalSink();
  std::string line = fmt::format("{}:{}:{} inccl {} ", sink.host, getpid(), syscall(SYS_gettid),
                                 kLevels[static_cast<int>(level) - 1].first);
  line += Escaped(text);
  line += '\n';
  const std::lock_guard lock(sink.mutex);
  WriteQuietly(sink.fd >= 0 ? sink.fd : STDERR_FILENO, line);
} catch (const std::exception&) {
  // Out of memory: a line less.
}

}  // namespace inccl
