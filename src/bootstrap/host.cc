// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/text.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kLeastSecretFile = 16, kMostSecretFile = 4096;

// Reads up to `most` bytes.
Result<Secret> ReadAll(int fd, size_t most) {
  Secret content(most);
  size_t have = 0;
  while (have < most) {
    const ssize_t got = read(fd, content.bytes().data() + have, most - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemErrorErrno("read", errno);
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  content.Truncate(have);
  return content;
}

}  // namespace

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return Escaped(name.data());
}

Result<uint64_t> HostId(const std::string& override) {
  std::string text;
  if (!override.empty()) {
    text = "given\n" + override;
  } else {
    text = "host\n";
    const UniqueFd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    if (fd.valid()) {
      const Result<Secret> boot = ReadAll(fd.get(), 64);
      if (!boot.ok()) return boot.status();
      text.append(reinterpret_cast<const char*>(boot->bytes().data()), boot->size());
    } else if (errno == ENOENT || errno == EACCES) {  // an old kernel, or the file is hidden
      text += HostName();
    } else {
      return SystemErrorErrno("/proc/sys/kernel/random/boot_id", errno);
    }
    struct stat ns {};
    if (stat("/proc/self/ns/net", &ns) == 0) text += fmt::format("\n{}:{}", ns.st_dev, ns.st_ino);
  }
  const Result<Mac> hash = Sha256(AsBytes(text));
  if (!hash.ok()) return hash.status();
  uint64_t id = 0;
  ByteReader(*hash).U64(&id);
  return id;
}

Result<uint64_t> MachineId(const std::string& override) {
  return HostId(override.starts_with("machine:") ? override : "");
}

Result<Secret> ReadSecretFile(const std::string& path) {
  const auto wrong = [&](const std::string& what) {
    return InvalidUsage(fmt::format("secret file {}: {}", path, what));
  };
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return SystemErrorErrno(fmt::format("secret file {}", path), errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemErrorErrno("fstat", errno);
  if (!S_ISREG(info.st_mode)) return wrong("not a regular file");
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return wrong(fmt::format("belongs to uid {}", info.st_uid));
  }
  if ((info.st_mode & 0077) != 0) {
    return wrong(fmt::format("mode {:04o} lets others use it; it must be 0600 or 0400",
                             info.st_mode & 07777));
  }
  Result<Secret> content = ReadAll(fd.get(), kMostSecretFile + 1);
  if (!content.ok()) return content.status();
  if (content->size() < kLeastSecretFile) {
    return wrong(
        fmt::format("{} bytes long; a secret has at least {}", content->size(), kLeastSecretFile));
  }
  if (content->size() > kMostSecretFile) {
    return wrong(fmt::format("longer than {} bytes", kMostSecretFile));
  }
  return content;
}

}  // namespace inccl::bootstrap

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // since Linux 6.5
#endif

namespace inccl::bootstrap {
namespace {

// A descriptor of the process that connected, safe against reuse of its pid; not valid on older
// kernels.
UniqueFd PeerPidFd(int fd) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0) return {};
  return UniqueFd(pidfd);
}

bool ProcessHasEnded(int pidfd) {
  pollfd ended = {.fd = pidfd, .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) != 0;
}

// /proc may belong to another pid namespace, where processes have other numbers.
bool ProcIsOurs() {
  std::array<char, 32> self{};
  const ssize_t length = readlink("/proc/self", self.data(), self.size() - 1);
  return length > 0 && std::to_string(getpid()) == self.data();
}

Status Ended(pid_t pid) { return RemoteError(fmt::format("process {}, which has ended", pid)); }

}  // namespace

Status CheckPeerNamespaces(int fd) {
  const Result<PeerCredentials> peer = GetPeerCredentials(fd);
  if (!peer.ok()) return peer.status();
  if (peer->pid == getpid()) return Status::Ok();
  if (peer->pid == 0) return InvalidUsage("a process in another pid namespace");
  if (!ProcIsOurs()) {
    return InvalidUsage(
        fmt::format("process {}, which may be in another pid namespace: /proc is not that of this "
                    "rank's",
                    peer->pid));
  }
  const UniqueFd pidfd = PeerPidFd(fd);
  for (const char* name : {"user", "pid"}) {
    struct stat ours {
    }, theirs{};
    const std::string path = fmt::format("/proc/{}/ns/{}", peer->pid, name);
    const bool seen = stat(fmt::format("/proc/self/ns/{}", name).c_str(), &ours) == 0 &&
                      stat(path.c_str(), &theirs) == 0;
    if (!seen && (errno == ENOENT || errno == ESRCH)) return Ended(peer->pid);
    if (!seen) {
      return InvalidUsage(fmt::format("process {}, whose {} namespace cannot be seen: {}",
                                      peer->pid, name, SystemErrorErrno(path, errno).message()));
    }
    if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino) {
      return InvalidUsage(
          fmt::format("process {}, which is in another {} namespace", peer->pid, name));
    }
  }
  // If the process has ended, another one may have its number now.
  return pidfd.valid() && ProcessHasEnded(pidfd.get()) ? Ended(peer->pid) : Status::Ok();
}

}  // namespace inccl::bootstrap
