// SPDX-License-Identifier: Apache-2.0
#include "base/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace inccl {

Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t most_bytes, int* error) {
  const std::string named = fmt::format("{} {}", what, path);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  *error = fd.valid() ? 0 : errno;
  if (*error != 0) return SystemErrorErrno(named, *error);
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
