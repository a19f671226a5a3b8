// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/namespaces.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/fd.h"
#include "bootstrap/socket.h"

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
