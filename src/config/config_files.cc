// SPDX-License-Identifier: Apache-2.0
#include "config/config_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "inccl/ccl.h"

namespace inccl {
namespace {

constexpr size_t kMostFileBytes = 64 * 1024;
constexpr std::string_view kBlanks = " \t\r\v\f";

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The line without its comment.
std::string_view Uncommented(std::string_view line) {
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '#' && (i == 0 || kBlanks.find(line[i - 1]) != kBlanks.npos)) {
      return line.substr(0, i);
    }
  }
  return line;
}

bool IsName(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return !text.empty() && is_letter(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

// Shortens text from a file for a message.
std::string Shown(std::string_view text) {
  return text.size() <= 80 ? std::string(text) : std::string(text.substr(0, 80)) + "...";
}

// The user's file if INCCL_CONF_FILE names none: the first default that exists; "" without a home.
std::string UserFile(const GetEnv& environment) {
  const auto below = [&](const char* variable, const char* name) -> std::string {
    const char* directory = environment(variable);
    if (directory == nullptr || *directory != '/') return "";
    return fmt::format("{}/{}", directory, name);
  };
  std::string xdg = below("XDG_CONFIG_HOME", "inccl.conf");
  if (!xdg.empty() && access(xdg.c_str(), F_OK) == 0) return xdg;
  std::string home = below("HOME", ".inccl.conf");
  return home.empty() ? xdg : home;
}

// Logs each text once per process, because every communicator reads the settings again.
void LogOnce(LogLevel level, const std::string& text) {
  if (!LogEnabled(level, LogSubsystem::kEnv)) return;
  static Mutex mutex;
  static NoDestructor<std::set<std::string>> logged INCCL_GUARDED_BY(mutex);
  {
    const MutexLock lock(&mutex);
    if (!logged->insert(text).second) return;
  }
  Log(level, LogSubsystem::kEnv, std::string_view(text));
}

// Of SetVariable.
struct ProcessPlaces {
  Mutex mutex;
  VariablePlaces places INCCL_GUARDED_BY(mutex);
};

ProcessPlaces& OfProcess() {
  static NoDestructor<ProcessPlaces> places;
  return *places;
}

}  // namespace

Status SetVariable(const std::string& name, const char* value, const std::string& source) {
  const VariableInfo* const info = FindVariable(name);
  if (info == nullptr) {
    return InvalidArgument(fmt::format("name: {} is no variable of this library{}",
                                       Escaped(Shown(name)), DidYouMean(name)));
  }
  if (info->environment_only) {
    return InvalidArgument(fmt::format("name: {} can be set in the environment only", name));
  }
  ProcessPlaces& process = OfProcess();
  const MutexLock lock(&process.mutex);
  if (value == nullptr) {
    process.places.erase(name);
  } else {
    process.places.insert_or_assign(name, PlacedValue{value, source});
  }
  return Status::Ok();
}

Result<std::vector<FileSetting>> ParseConfigFile(std::string_view text, const std::string& file) {
  std::vector<FileSetting> settings;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t end = text.find('\n');
    const std::string_view line = Trim(Uncommented(text.substr(0, end)));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.empty()) continue;
    const auto wrong = [&](const std::string& what) {
      return InvalidArgument(Escaped(fmt::format("{}:{}: {}", file, line_number, what)));
    };
    if (std::any_of(line.begin(), line.end(),
                    [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7F; })) {
      return wrong("a control character; this is no text file");
    }
    const size_t equals = line.find('=');
    if (equals == line.npos) {
      return wrong(fmt::format("\"{}\" is not of the form NAME=value", Shown(line)));
    }
    const std::string_view name = Trim(line.substr(0, equals));
    if (!IsName(name)) {
      return wrong(
          fmt::format("\"{}\" is no name of a variable; a line is NAME=value", Shown(name)));
    }
    for (const FileSetting& other : settings) {
      if (other.name == name) {
        return wrong(fmt::format("{} has a value in line {} already", Shown(name), other.line));
      }
    }
    settings.push_back(
        {std::string(name), std::string(Trim(line.substr(equals + 1))), line_number});
  }
  return settings;
}

Result<Settings> Settings::Load(GetEnv environment, const std::string& system_file) {
  Settings settings;
  settings.environment_ = std::move(environment);
  {
    ProcessPlaces& process = OfProcess();
    const MutexLock lock(&process.mutex);
    settings.places_ = process.places;
  }
  const char* named = settings.environment_("INCCL_CONF_FILE");
  const bool required = named != nullptr && *named != '\0';
  const std::string user_file = required ? named : UserFile(settings.environment_);
  if (!user_file.empty()) {
    if (Status status = settings.LoadFile(user_file, TextFileWriters::kThisUser, required);
        !status.ok())
      return status;
  }
  if (Status status = settings.LoadFile(system_file, TextFileWriters::kAnyUser, false);
      !status.ok())
    return status;
  return settings;
}

Status Settings::LoadFile(const std::string& path, TextFileWriters writers, bool required) {
  int error = 0;
  Result<std::string> text =
      ReadTextFile("configuration file", path, kMostFileBytes, &error, writers);
  if (!text.ok()) {
    const bool absent = error == ENOENT || error == ENOTDIR;
    const bool forbidden = error == EACCES || error == EPERM;
    // With these errors nothing is wrong with the name.
    const bool of_the_system =
        error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
    if (required && !of_the_system) {
      return InvalidArgument(fmt::format("INCCL_CONF_FILE: {}", text.status().message()));
    }
    if (!absent && !forbidden) return text.status();
    files_.push_back({path,
                      absent           ? FileState::kAbsent
                      : error == EPERM ? FileState::kRefused
                                       : FileState::kUnreadable,
                      0});
    if (forbidden) warnings_.push_back(text.status().message() + "; it is not used");
    return Status::Ok();
  }
  Result<std::vector<FileSetting>> found = ParseConfigFile(*text, path);
  if (!found.ok()) return found.status();
  files_.push_back({path, FileState::kRead, found->size()});
  for (const FileSetting& setting : *found) {
    std::string where = fmt::format("{}:{}", path, setting.line);
    const VariableInfo* info = FindVariable(setting.name);
    if (info == nullptr) {
      warnings_.push_back(fmt::format("{}: {} is no variable of this library{}", where,
                                      Shown(setting.name), DidYouMean(setting.name)));
      continue;
    }
    if (info->environment_only) {
      return InvalidArgument(
          fmt::format("{}: {}={}: it is of one process and can be set in the environment only",
                      where, setting.name, Shown(setting.value)));
    }
    places_.try_emplace(setting.name, PlacedValue{setting.value, std::move(where)});
  }
  return Status::Ok();
}

const char* Settings::Get(const char* name) const {
  if (const char* value = environment_(name); value != nullptr) return value;
  const auto found = places_.find(std::string_view(name));
  return found == places_.end() ? nullptr : found->second.value.c_str();
}

std::string Settings::Where(const char* name) const {
  if (environment_(name) != nullptr) return "environment";
  const auto found = places_.find(std::string_view(name));
  return found == places_.end() ? "" : found->second.where;
}

std::string Settings::Described(const char* name) const {
  const std::string where = Where(name);
  return where.empty() ? name : fmt::format("{} ({})", name, where);
}

Result<Environment> ApplySettings(const Settings& settings, const char* const* environment) {
  const WhereSet where = [&](const char* name) { return settings.Where(name); };
  // The log's variables come first, because messages may be about the others.
  Result<Environment> log = ReadEnvironment(
      [&](const char* name) {
        return std::string_view(name).starts_with("INCCL_DEBUG") ? settings.Get(name) : nullptr;
      },
      where);
  if (!log.ok()) return log.status();
  if (Status status = ConfigureLog(log->debug, log->debug_subsys, log->debug_file); !status.ok()) {
    return status;
  }
  // Not at the default level: a program without problems prints nothing.
  if (const char* level = settings.Get("INCCL_DEBUG"); level != nullptr && *level != '\0') {
    LogOnce(LogLevel::kVersion, fmt::format("version {}.{}.{}", CCL_MAJOR, CCL_MINOR, CCL_PATCH));
  }
  for (const std::string& warning : settings.warnings()) LogOnce(LogLevel::kWarn, warning);
  for (const std::string& name : UnknownVariables(environment)) {
    LogOnce(LogLevel::kWarn,
            fmt::format("{} is set, but is no variable of this library{}", name, DidYouMean(name)));
  }
  for (const VariableInfo& info : VariableTable()) {
    if (const char* value = settings.Get(info.name); value != nullptr) {
      LogOnce(LogLevel::kInfo,
              fmt::format("{} is \"{}\" ({})", info.name, value, settings.Where(info.name)));
    }
  }
  return ReadEnvironment([&](const char* name) { return settings.Get(name); }, where);
}

}  // namespace inccl
