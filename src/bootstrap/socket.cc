// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <optional>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/text.h"
#include "base/types.h"

namespace inccl::bootstrap {
namespace {

constexpr int kBacklog = kMaxRanks;  // all may connect while this rank does something else
constexpr rlim_t kSpareDescriptors = 64;
constexpr Time kPollFailurePause = 10 * kMillisecond;
constexpr int kMostRefusals = 10;  // of a write, 1 ms apart

void DisableNagle(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The timeout for poll(), rounded up to milliseconds; -1 for kNever.
int PollTimeout(Time until) {
  if (until == kNever) return -1;
  const Time left = until - SystemClock().Now();
  if (left <= 0) return 0;
  return static_cast<int>(
      std::min<Time>((left + kMillisecond - 1) / kMillisecond, 24 * 3600 * 1000));
}

UniqueFd MakeSocket(sa_family_t family) {
  return OpenOwnFd([&] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

// How many there are; else errno says why that cannot be seen.
std::optional<size_t> OpenDescriptors() {
  DIR* const dir = opendir("/proc/self/fd");
  if (dir == nullptr) return std::nullopt;
  size_t count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

}  // namespace

SocketAddress SocketAddress::Unix(std::string_view name) {
  SocketAddress address;
  auto* const un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), kMaxUnixName);
  std::memcpy(un->sun_path + 1, name.data(), length);  // sun_path[0] == 0: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

SocketAddress SocketAddress::Tcp(const UniqueIdAddress& from) {
  SocketAddress address;
  if (from.family == 6) {
    auto* const in = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(from.port);
    in->sin6_scope_id = from.scope;
    std::memcpy(&in->sin6_addr, from.address.data(), 16);
    address.length = sizeof *in;
  } else {
    auto* const in = reinterpret_cast<sockaddr_in*>(&address.storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(from.port);
    std::memcpy(&in->sin_addr, from.address.data(), 4);
    address.length = sizeof *in;
  }
  return address;
}

std::string SocketAddress::Host() const {
  const std::string text = ToString();
  return text.substr(0, text.rfind(':'));
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, ntohs(in->sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto* const in = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
    const std::string scope =
        IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr) ? fmt::format("%{}", in->sin6_scope_id) : "";
    return fmt::format("[{}{}]:{}", text, scope, ntohs(in->sin6_port));
  }
  constexpr size_t kPathAt = offsetof(sockaddr_un, sun_path) + 1;
  if (length <= kPathAt) return "unix socket";
  return fmt::format("unix socket @{}", Escaped({reinterpret_cast<const char*>(&storage) + kPathAt,
                                                 length - kPathAt}));
}

Result<UniqueFd> Listen(const SocketAddress& address, bool* in_use) {
  const std::string where = address.ToString();
  UniqueFd fd = MakeSocket(address.storage.ss_family);
  if (!fd.valid()) return SystemErrorErrno(fmt::format("socket for {}", where), errno);
  // A port that a rendezvous has used before stays busy for a minute otherwise.
  const int on = 1;
  if (!address.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    const int error = errno;
    if (in_use != nullptr) *in_use = error == EADDRINUSE;
    return SystemErrorErrno(fmt::format("bind {}", where), error);
  }
  if (listen(fd.get(), kBacklog) != 0) {
    const int error = errno;  // EADDRINUSE: another socket was bound at the same moment
    if (in_use != nullptr) *in_use = error == EADDRINUSE;
    return SystemErrorErrno(fmt::format("listen on {}", where), error);
  }
  return fd;
}

Result<UniqueFd> ListenAt(UniqueIdAddress* address, const PortRange& ports) {
  if (ports.first != 0) {
    // Ranks begin at different ports, so that they seldom try one that another has taken.
    const int count = ports.last - ports.first + 1, begin = getpid() % count;
    for (int i = 0; i < count; ++i) {
      address->port = static_cast<uint16_t>(ports.first + (begin + i) % count);
      bool in_use = false;
      Result<UniqueFd> listener = Listen(SocketAddress::Tcp(*address), &in_use);
      if (listener.ok() || !in_use) return listener;
    }
    return SystemError(fmt::format("INCCL_PORT_RANGE={}-{}: each of these ports of {} is in use",
                                   ports.first, ports.last, SocketAddress::Tcp(*address).Host()));
  }
  Result<UniqueFd> listener = Listen(SocketAddress::Tcp(*address));
  if (!listener.ok()) return listener;
  const Result<uint16_t> port = LocalPort(listener->get());
  if (!port.ok()) return port.status();
  address->port = *port;
  return listener;
}

Result<std::vector<UniqueFd>> ListenAtAll(std::vector<UniqueIdAddress>* addresses,
                                          const PortRange& ports) {
  std::vector<UniqueFd> listeners;
  std::vector<UniqueIdAddress> usable;
  Status failure = InvalidArgument("no address to listen at");
  for (UniqueIdAddress address : *addresses) {
    Result<UniqueFd> listener = ListenAt(&address, ports);
    if (!listener.ok()) {
      failure = listener.status();
      continue;
    }
    listeners.push_back(*std::move(listener));
    usable.push_back(address);
  }
  if (listeners.empty()) return failure;
  *addresses = std::move(usable);
  return listeners;
}

Result<uint16_t> LocalPort(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return SystemErrorErrno("getsockname", errno);
  }
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Result<UniqueFd> Connect(const SocketAddress& address, int* error) {
  *error = 0;
  UniqueFd fd = MakeSocket(address.storage.ss_family);
  if (!fd.valid() && IsLack(errno)) {
    *error = errno;
    return fd;
  }
  if (!fd.valid()) {
    return SystemErrorErrno(fmt::format("socket to {}", address.ToString()), errno);
  }
  if (!address.is_unix()) DisableNagle(fd.get());
  // After EINTR a non-blocking connect continues by itself.
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    *error = errno;
  }
  return fd;
}

bool IsLack(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::string SocketErrorText(int error) {
  char buffer[128];
  std::string text = fmt::format("{} (errno {})", strerror_r(error, buffer, sizeof buffer), error);
  rlimit limit{};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += fmt::format("; the process has all {} descriptors of its limit in use (ulimit -n)",
                        limit.rlim_cur);
  }
  return text;
}

void ProbeWhenIdle(int fd) {
  constexpr int kOne = 1, kAfterSeconds = 20, kEachSeconds = 5, kProbes = 6;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kAfterSeconds, sizeof kAfterSeconds);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kEachSeconds, sizeof kEachSeconds);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &kOne, sizeof kOne);
}

int PendingError(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

UniqueFd Accept(int listener, SocketAddress* peer, int* error) {
  while (true) {
    peer->length = sizeof peer->storage;
    UniqueFd fd = OpenOwnFd([&] {
      return accept4(listener, reinterpret_cast<sockaddr*>(&peer->storage), &peer->length,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (fd.valid()) {
      *error = 0;
      if (!peer->is_unix()) DisableNagle(fd.get());
      return fd;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    *error = errno == EWOULDBLOCK ? EAGAIN : errno;
    return fd;
  }
}

void ResetConnection(UniqueFd fd) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

Result<PeerCredentials> GetPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SystemErrorErrno("SO_PEERCRED", errno);
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

IoResult ReadSome(int fd, std::span<std::byte> out) {
  while (true) {
    const ssize_t got = recv(fd, out.data(), out.size(), MSG_DONTWAIT);
    if (got > 0) return {.bytes = static_cast<size_t>(got)};
    if (got == 0) return {.closed = true};
    if (errno != EINTR) return {.error = errno == EWOULDBLOCK ? EAGAIN : errno};
  }
}

IoResult WriteSome(int fd, Bytes bytes) {
  while (true) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return {.bytes = static_cast<size_t>(sent)};
    if (errno != EINTR) return {.error = errno == EWOULDBLOCK ? EAGAIN : errno};
  }
}

bool WriteAll(int fd, Bytes bytes) {
  for (int refusals = 0; !bytes.empty();) {
    const IoResult sent = WriteSome(fd, bytes);
    if (sent.error == EAGAIN && refusals < kMostRefusals) {
      ++refusals;
      SleepUntil(SystemClock().Now() + kMillisecond);
      continue;
    }
    if (sent.error != 0) return false;
    bytes = bytes.subspan(sent.bytes);
  }
  return true;
}

int PollUntil(std::span<pollfd> fds, Time until) {
  const int ready = poll(fds.data(), fds.size(), PollTimeout(until));
  if (ready < 0 && errno != EINTR) {
    SleepUntil(std::min(until, SystemClock().Now() + kPollFailurePause));
  }
  return ready;
}

bool WaitFor(int fd, short events, Time until) {
  while (true) {
    pollfd p = {.fd = fd, .events = events, .revents = 0};
    const int ready = PollUntil(std::span(&p, 1), until);
    if (ready > 0) return true;
    if (SystemClock().Now() >= until) return false;
  }
}

void SleepUntil(Time until) {
  const timespec at = {.tv_sec = until / kSecond, .tv_nsec = until % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

Status EnsureDescriptors(size_t more) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SystemErrorErrno("RLIMIT_NOFILE", errno);
  if (limit.rlim_cur == RLIM_INFINITY) return Status::Ok();
  const std::optional<size_t> open = OpenDescriptors();
  const bool none_left = !open && errno == EMFILE;
  const rlim_t need = (none_left ? limit.rlim_cur : open.value_or(0)) + more + kSpareDescriptors;
  if (need <= limit.rlim_cur) return Status::Ok();
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(need * 2, 4096));
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return SystemErrorErrno("RLIMIT_NOFILE", errno);
  }
  if (need <= limit.rlim_cur) return Status::Ok();
  return SystemError(
      fmt::format("needs about {} descriptors, the limit is {} (ulimit -Hn, RLIMIT_NOFILE)", need,
                  limit.rlim_max));
}

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
