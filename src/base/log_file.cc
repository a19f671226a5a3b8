// SPDX-License-Identifier: Apache-2.0
#include "base/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace inccl
