// SPDX-License-Identifier: Apache-2.0
#include "control/status_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include "base/own_fds.h"
#include "bootstrap/crypto.h"

namespace inccl::control {
namespace {

constexpr int kBacklog = 16;
constexpr time_t kHalfMade = 60;  // seconds until a socket that was never finished counts as stale

bool AddressOf(const std::string& path, sockaddr_un* address) {
  if (path.size() >= sizeof address->sun_path) return false;
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  return true;
}

Status TooLong(const std::string& path) {
  return SystemError(fmt::format("{}: too long for the name of a unix socket", path));
}

Result<UniqueFd> MakeSocket() {
  UniqueFd fd =
      OpenOwnFd([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) return SystemErrorErrno("socket", errno);
  return fd;
}

}  // namespace

Status IsOwnDirectory(const std::string& directory) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return SystemErrorErrno(directory, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemErrorErrno(directory, errno);
  if (info.st_uid == geteuid() && (info.st_mode & 0077) == 0) return Status::Ok();
  return SystemError(
      fmt::format("{}: belongs to uid {} with mode {:04o}; it must be this user's, with mode 0700",
                  directory, info.st_uid, info.st_mode & 07777));
}

// The socket gets its name only when it listens: one that does not yet refuses connections as a
// stale one does.
Result<UniqueFd> ListenForStatus(const std::string& directory, std::string* path) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemErrorErrno(directory, errno);
  }
  if (Status status = IsOwnDirectory(directory); !status.ok()) return status;
  uint32_t random = 0;
  Status status = bootstrap::FillRandom(std::as_writable_bytes(std::span(&random, 1)));
  if (!status.ok()) return status;
  const std::string name = fmt::format("{}-{:08x}", getpid(), random);
  const std::string half_made = directory + "/." + name;
  sockaddr_un address{};
  if (!AddressOf(half_made, &address)) return TooLong(half_made);
  Result<UniqueFd> fd = MakeSocket();
  if (!fd.ok()) return fd;
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SystemErrorErrno(fmt::format("bind {}", half_made), errno);
  }
  *path = directory + "/" + name;
  if (listen(fd->get(), kBacklog) == 0 && rename(half_made.c_str(), path->c_str()) == 0) return fd;
  status = SystemErrorErrno(*path, errno);
  unlink(half_made.c_str());
  return status;
}

Result<UniqueFd> ConnectToStatus(const std::string& path, int* error) {
  *error = 0;
  sockaddr_un address{};
  if (!AddressOf(path, &address)) return TooLong(path);
  Result<UniqueFd> fd = MakeSocket();
  if (!fd.ok()) return fd;
  if (connect(fd->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    *error = errno;
  }
  return fd;
}

bool IsStatusSocket(const std::string& path) {
  unsigned pid = 0, random = 0;
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool named = std::sscanf(name.c_str(), "%u-%8x", &pid, &random) == 2 &&
                     name == fmt::format("{}-{:08x}", pid, random);
  struct stat info {};
  return named && lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

bool RemoveIfStale(const std::string& path) {
  int error = 0;
  const Result<UniqueFd> fd = ConnectToStatus(path, &error);
  if (!fd.ok()) return false;
  if (error == ENOENT) return true;
  return error == ECONNREFUSED && unlink(path.c_str()) == 0;
}

void RemoveStaleIn(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), &closedir);
  if (dir == nullptr) return;
  while (const dirent* const entry = readdir(dir.get())) {
    const bool half_made = entry->d_name[0] == '.';
    const char* const number = entry->d_name + (half_made ? 1 : 0);
    const pid_t pid = std::atoi(number);
    if (pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
    const std::string path = directory + "/" + entry->d_name;
    struct stat info {};
    if (!IsStatusSocket(directory + "/" + number) && !half_made) continue;
    if (half_made && (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode) ||
                      time(nullptr) - info.st_mtime < kHalfMade)) {
      continue;
    }
    (void)RemoveIfStale(path);
  }
}

}  // namespace inccl::control
