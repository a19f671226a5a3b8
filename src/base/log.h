// SPDX-License-Identifier: Apache-2.0
//
// The log: by default warnings, more if the user asks for it. Any thread may log. A line is one
// write that never waits for a reader: the log drops lines for which a pipe, socket or terminal has
// no room, and the next line says how many are missing. A disabled level costs one relaxed load.
#ifndef INCCL_BASE_LOG_H_
#define INCCL_BASE_LOG_H_

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace inccl {

// The levels of INCCL_DEBUG (and NCCL_DEBUG): each level includes those before it.
enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kTrace = 4 };

// The subject of a line. kInfo and kTrace lines are written only for the selected subsystems.
enum class LogSubsystem : uint32_t {
  kInit = 1u << 0,
  kBootstrap = 1u << 1,
  kEnv = 1u << 2,
  kTransport = 1u << 3,
  kControl = 1u << 4,
  kCollectives = 1u << 5,
  kCodec = 1u << 6,
  kTuning = 1u << 7,
};
inline constexpr uint32_t kAllLogSubsystems = (1u << 8) - 1;
inline constexpr uint32_t kDefaultLogSubsystems = static_cast<uint32_t>(LogSubsystem::kInit) |
                                                  static_cast<uint32_t>(LogSubsystem::kBootstrap) |
                                                  static_cast<uint32_t>(LogSubsystem::kEnv);

// Parses "NONE" or "", "VERSION", "WARN", "INFO" or "TRACE", in any letter case. Returns false for
// any other text.
bool ParseLogLevel(std::string_view text, LogLevel* level);
// Parses e.g. "INIT,COLL", or with a leading ^ all but the named ones. Names: INIT, BOOTSTRAP, ENV,
// TRANSPORT, CONTROL, COLL, CODEC, TUNING, ALL. On failure *unknown is the first unknown word.
bool ParseLogSubsystems(std::string_view text, uint32_t* mask, std::string* unknown);

// Sets level, subsystems and destination. `file`: "" for stderr; %h stands for the host's name, %p
// for the process id, %% for a %. Returns kSystemError if the file cannot be opened or is not a
// file of this user alone (log.h); lines then go to stderr.
Status ConfigureLog(LogLevel level, uint32_t subsystems, const std::string& file);

namespace internal {
extern std::atomic<int> log_level;
extern std::atomic<uint32_t> log_subsystems;
}  // namespace internal

inline bool LogEnabled(LogLevel level, LogSubsystem subsystem = LogSubsystem::kInit) {
  return static_cast<int>(level) <= internal::log_level.load(std::memory_order_relaxed) &&
         (level <= LogLevel::kWarn ||
          (static_cast<uint32_t>(subsystem) &
           internal::log_subsystems.load(std::memory_order_relaxed)) != 0);
}

// Writes "host:pid:tid inccl LEVEL text". Escapes `text`, which may contain bytes from a peer.
void Log(LogLevel level, LogSubsystem subsystem, std::string_view text) noexcept;
inline void Log(LogLevel level, std::string_view text) { Log(level, LogSubsystem::kInit, text); }

// Formats only if the line is enabled; drops the line if there is no memory.
template <typename First, typename... Rest>
void Log(LogLevel level, LogSubsystem subsystem, fmt::format_string<First, Rest...> format,
         First&& first, Rest&&... rest) noexcept try {
  if (!LogEnabled(level, subsystem)) return;
  Log(level, subsystem,
      std::string_view(
          fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
} catch (const std::exception&) {
  // Out of memory: the line is dropped.
}

// Where the log goes.

// "" if the name has a % only in %h, the host's name, %p, the process id, and %%, a %; else what it
// is instead.
std::string CheckLogFileName(std::string_view name);

// Opens a file for appending, or creates it with mode 0600. Returns kSystemError, naming the file,
// unless it is a regular file of this user with one link: the log must not follow a link or file
// that another user has put there. Does not block if the name is a pipe.
Result<UniqueFd> OpenLogFile(const std::string& name);

// Gets each line in place of the file or stderr: its level ("WARN") and its text, escaped. nullptr:
// none. Any thread.
using LogFunction = void (*)(const char* level, const char* text);
void SetLogFunction(LogFunction function);

}  // namespace inccl

#endif  // INCCL_BASE_LOG_H_
