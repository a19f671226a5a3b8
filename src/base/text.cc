// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

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

namespace {

// The size of the character at the start of `text` if it can be shown unchanged; else 0.
size_t ShownBytes(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length == 0) return 0;
  uint32_t point = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};  // 0x80 to 0x9F: C1
  const bool surrogate = point >= 0xD800 && point < 0xE000;
  return point >= kLeast[length] && point <= 0x10FFFF && !surrogate ? length : 0;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const size_t shown = ShownBytes(text);
    if (shown > 0) {
      escaped += text.substr(0, shown);
    } else {
      escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(shown > 0 ? shown : 1);
  }
  return escaped;
}

}  // namespace inccl
