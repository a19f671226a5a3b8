// SPDX-License-Identifier: Apache-2.0
//
// Configuration: the environment over the user's file over the system's file. Files are lines
// NAME=value; '#' at the start of a line or after a blank begins a comment.
//
// The user's file is the one named by INCCL_CONF_FILE, else $XDG_CONFIG_HOME/inccl.conf, else
// ~/.inccl.conf. The environment is asked for all three names, so that secure_getenv keeps a
// program that runs with another user's rights from reading them.
#ifndef INCCL_CONFIG_CONFIG_FILES_H_
#define INCCL_CONFIG_CONFIG_FILES_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/text_file.h"
#include "config/variables.h"

namespace inccl {

inline constexpr const char* kSystemConfigFile = "/etc/inccl.conf";

struct FileSetting {
  std::string name, value;
  int line = 0;
};

// The settings in the text of a file, in its order; each name at most once. kInvalidArgument naming
// file, line and what is wrong with it. Whether the names are known is not looked at.
Result<std::vector<FileSetting>> ParseConfigFile(std::string_view text, const std::string& file);

class Settings {
 public:
  enum class FileState {
    kRead,
    kAbsent,
    kUnreadable,
    kRefused,  // others than this user and root may have written it
  };
  struct File {
    std::string path;
    FileState state = FileState::kAbsent;
    size_t settings = 0;
  };

  // Reads the files. An error names the file: one that INCCL_CONF_FILE names and that cannot be
  // read, or a line that cannot be understood in any. Of the other files, those that are missing or
  // that this user may not read count as empty. The user's file counts only if it belongs to this
  // user or to root and nobody else may write to it; the system's directory is trusted.
  static Result<Settings> Load(GetEnv environment,
                               const std::string& system_file = kSystemConfigFile);

  // The value in the first place that has the name; an empty one there hides those below and means
  // the default. nullptr if it is nowhere. Valid as long as this object and the environment.
  const char* Get(const char* name) const;
  // "environment" or "FILE:LINE"; "" if it is nowhere.
  std::string Where(const char* name) const;
  // "INCCL_ALGO (environment)": for messages about its value.
  std::string Described(const char* name) const;

  // In the order in which they win.
  const std::vector<File>& files() const { return files_; }
  // For people: unknown names in files, files that could not be read.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Place {
    std::string value, where;
  };

  Status LoadFile(const std::string& path, TextFileWriters writers, bool required);

  GetEnv environment_;
  std::map<std::string, Place, std::less<>> from_files_;
  std::vector<File> files_;
  std::vector<std::string> warnings_;
};

// Sets up the log, then checks and converts everything. Logs, once per process and text: the
// version, which variable is set where, the warnings of `settings` and the misspelt names in
// `environment` (as environ).
Result<Environment> ApplySettings(const Settings& settings, const char* const* environment);

}  // namespace inccl

#endif  // INCCL_CONFIG_CONFIG_FILES_H_
