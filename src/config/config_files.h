// SPDX-License-Identifier: Apache-2.0
//
// Configuration. The environment overrides what SetVariable has set, which overrides the user's
// file, which overrides the system's file. Files have lines NAME=value; '#' at the start of a line
// or after a blank begins a comment.
//
// The user's file is the one that INCCL_CONF_FILE names, else $XDG_CONFIG_HOME/inccl.conf, else
// ~/.inccl.conf. All three come from the environment function, so with secure_getenv a program that
// runs with another user's rights reads none of them.
#ifndef INCCL_CONFIG_CONFIG_FILES_H_
#define INCCL_CONFIG_CONFIG_FILES_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "config/variables.h"

namespace inccl {

inline constexpr const char* kSystemConfigFile = "/etc/inccl.conf";

struct FileSetting {
  std::string name, value;
  int line = 0;
};

// Parses the text of a file; each name may occur once. A kInvalidArgument names file, line and
// error. Does not check whether the names are known.
Result<std::vector<FileSetting>> ParseConfigFile(std::string_view text, const std::string& file);

// A value that is not from the environment, and where it is set.
struct PlacedValue {
  std::string value, where;
};
using VariablePlaces = std::map<std::string, PlacedValue, std::less<>>;

// Gives a variable a value in this process, which counts after the environment and before the
// files. `source`: for messages. nullptr: no longer. kInvalidArgument if there is no such variable.
// Any thread.
Status SetVariable(const std::string& name, const char* value, const std::string& source);

class Settings {
 public:
  enum class FileState {
    kRead,
    kAbsent,
    kUnreadable,
    kRefused,  // users other than this one and root may have written it
  };
  struct File {
    std::string path;
    FileState state = FileState::kAbsent;
    size_t settings = 0;
  };

  // Reads the files. Fails, naming the file, if the file in INCCL_CONF_FILE cannot be read or if
  // any file has a malformed line. Other files that are missing or unreadable count as empty. The
  // user's file counts only if it belongs to this user or root and no other user may write to it;
  // the system's directory is trusted.
  static Result<Settings> Load(GetEnv environment,
                               const std::string& system_file = kSystemConfigFile);

  // The value from the first place that sets the name; nullptr if none does. An empty value hides
  // the later places and means the default. Valid as long as this object and the environment.
  const char* Get(const char* name) const;
  // "environment", the source of SetVariable, or "FILE:LINE"; "" if the name is not set.
  std::string Where(const char* name) const;
  // For messages about the value, e.g. "INCCL_ALGO (environment)".
  std::string Described(const char* name) const;

  // By precedence, highest first.
  const std::vector<File>& files() const { return files_; }
  // Texts about unknown names in files and about files that could not be read.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Status LoadFile(const std::string& path, TextFileWriters writers, bool required);

  GetEnv environment_;
  VariablePlaces places_;  // all but the environment's
  std::vector<File> files_;
  std::vector<std::string> warnings_;
};

// Sets up the log, then checks and converts all variables. Logs, once per process and text, the
// version, where each variable is set, the warnings of `settings` and misspelt names in
// `environment` (in the format of environ).
Result<Environment> ApplySettings(const Settings& settings, const char* const* environment);

}  // namespace inccl

#endif  // INCCL_CONFIG_CONFIG_FILES_H_
