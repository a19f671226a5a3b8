// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/fd_passing.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace inccl::bootstrap {
namespace {

constexpr char kMessageMagic[4] = {'i', 'c', 'f', '1'};

struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kMaxSharedFds)];
};

}  // namespace

Result<bool> SendFds(int socket, std::span<const int> fds) {
  if (fds.size() > kMaxSharedFds) {
    return InvalidArgument(
        fmt::format("{} descriptors to share, at most {}", fds.size(), kMaxSharedFds));
  }
  ByteWriter message;
  message.Raw(std::as_bytes(std::span(kMessageMagic)));
  message.U32(static_cast<uint32_t>(fds.size()));
  std::array<std::byte, kFdMessageBytes> bytes;
  std::copy(message.bytes().begin(), message.bytes().end(), bytes.begin());
  iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ControlBuffer control{};
  if (!fds.empty()) {
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  while (true) {
    const ssize_t sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes.size())) return true;
    if (sent >= 0) return InternalError("a message of 8 bytes was torn");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS || errno == ENOBUFS) {
      return false;
    }
    if (errno == EPIPE || errno == ECONNRESET) return RemoteError("closed the connection");
    return SystemErrorErrno("passing descriptors", errno);
  }
}

Result<bool> FdReceiver::Receive(int socket) {
  while (have_ < kFdMessageBytes) {
    iovec part = {.iov_base = message_.data() + have_, .iov_len = kFdMessageBytes - have_};
    ControlBuffer control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    fds_.reserve(fds_.size() + kMaxSharedFds);  // an exception after recvmsg would leak some
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got <= 0) return RemoteError("closed the connection");
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
        fds_.emplace_back(fd);
      }
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return SystemError("descriptors were lost: the limit of open files is reached (ulimit -n)");
    }
    have_ += static_cast<size_t>(got);
  }
  ByteReader reader(message_);
  std::array<std::byte, sizeof kMessageMagic> magic;
  uint32_t count = 0;
  if (!reader.Raw(magic) || std::memcmp(magic.data(), kMessageMagic, sizeof kMessageMagic) != 0 ||
      !reader.U32(&count) || count != fds_.size()) {
    return InternalError(fmt::format("sent {} descriptors and announced {}", fds_.size(), count));
  }
  return true;
}

}  // namespace inccl::bootstrap
