// SPDX-License-Identifier: Apache-2.0
//
// Lines for people: warnings once the settings have been read, more if somebody asks for it. Any
// thread; a line is one write, which never waits for a reader: what a pipe, socket or terminal has
// no room for is dropped, and the next line says how many are missing. Costs one relaxed load when
// its level is off.
#ifndef INCCL_BASE_LOG_H_
#define INCCL_BASE_LOG_H_

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "base/status.h"

namespace inccl {

// As INCCL_DEBUG (and NCCL_DEBUG): each level contains those before it.
enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kTrace = 4 };

// What a line is about. kInfo and kTrace lines are written for the subsystems asked for.
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

// "NONE" or "", "VERSION", "WARN", "INFO", "TRACE"; letter case does not matter. False: no level.
bool ParseLogLevel(std::string_view text, LogLevel* level);
// "INIT,COLL" or, with ^, all but those named: INIT, BOOTSTRAP, ENV, TRANSPORT, CONTROL, COLL,
// CODEC, TUNING, ALL. On failure *unknown is the word at fault.
bool ParseLogSubsystems(std::string_view text, uint32_t* mask, std::string* unknown);

// Where lines go from now on. `file`: "" for stderr; %h becomes the host's name, %p the process id,
// %% a %; kSystemError if it cannot be opened or is not a file of this user alone (log_file.h);
// lines then go to stderr.
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

// "host:pid:tid inccl LEVEL text". Bytes of `text` that a terminal would act on are escaped: it may
// hold what a peer sent.
void Log(LogLevel level, LogSubsystem subsystem, std::string_view text) noexcept;
inline void Log(LogLevel level, std::string_view text) { Log(level, LogSubsystem::kInit, text); }

// Formats only if the line is wanted, and if there is memory for it.
template <typename First, typename... Rest>
void Log(LogLevel level, LogSubsystem subsystem, fmt::format_string<First, Rest...> format,
         First&& first, Rest&&... rest) noexcept try {
  if (!LogEnabled(level, subsystem)) return;
  Log(level, subsystem,
      std::string_view(
          fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
} catch (const std::exception&) {
  // A line less.
}

}  // namespace inccl

#endif  // INCCL_BASE_LOG_H_
