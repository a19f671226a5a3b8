// SPDX-License-Identifier: Apache-2.0
#include "base/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace inccl {
namespace {

// Says why another user may have written the file; "" if none can.
std::string WrittenByOthers(const struct stat& info) {
  if (S_ISCHR(info.st_mode)) return "";
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return fmt::format("belongs to uid {}, neither to uid {} nor to root", info.st_uid, geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return "";
  return fmt::format("mode {:04o} lets others write to it (chmod go-w)", info.st_mode & 07777);
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t most_bytes, int* error, TextFileWriters writers) {
  const std::string named = fmt::format("{} {}", what, path);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  *error = fd.valid() ? 0 : errno;
  if (*error != 0) return SystemErrorErrno(named, *error);
  if (writers == TextFileWriters::kThisUser) {
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) {
      *error = errno;
      return SystemErrorErrno(named, *error);
    }
    if (const std::string why = WrittenByOthers(info); !why.empty()) {
      *error = EPERM;
      return SystemError(fmt::format("{}: {}", named, why));
    }
  }
  std::string text(most_bytes + 1, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *error = errno;
      return SystemErrorErrno(named, *error);
    }
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  if (have > most_bytes) {
    return InvalidArgument(fmt::format("{}: longer than {} bytes", named, most_bytes));
  }
  text.resize(have);
  return text;
}

}  // namespace inccl
