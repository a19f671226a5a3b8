// SPDX-License-Identifier: Apache-2.0
//
// Non-blocking stream sockets, TCP and abstract unix, for bootstrap and control. Every descriptor
// is close-on-exec, no write raises SIGPIPE, and EINTR never shows.
#ifndef INCCL_BOOTSTRAP_SOCKET_H_
#define INCCL_BOOTSTRAP_SOCKET_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/unique_id.h"

namespace inccl::bootstrap {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // Abstract, so without a file; at most kMaxUnixName characters.
  static SocketAddress Unix(std::string_view name);
  static SocketAddress Tcp(const UniqueIdAddress& address);
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  std::string ToString() const;  // "192.0.2.1:4711", "[::1]:4711", "unix socket @name"
};
inline constexpr size_t kMaxUnixName = 100;

Result<UniqueFd> Listen(const SocketAddress& address);
// The port a TCP listener got (port 0 asks for any).
Result<uint16_t> LocalPort(int fd);
// A connection may still be on its way: wait until writable, then PendingError. *error is 0 or the
// errno of a failed connect; kSystemError if there is no socket to be had.
Result<UniqueFd> Connect(const SocketAddress& address, int* error);
int PendingError(int fd);

// The next connection; an invalid fd with *error EAGAIN (none) or another errno.
UniqueFd Accept(int listener, SocketAddress* peer, int* error);
// Closes so that the other side sees a reset.
void ResetConnection(UniqueFd fd);

// Of the process at the other end of a unix socket.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> GetPeerCredentials(int fd);
// Of who listens at the name of a unix socket. An error: nobody does, as far as one can see.
Result<PeerCredentials> WhoListens(const SocketAddress& address);

struct IoResult {
  size_t bytes = 0;
  bool closed = false;  // end of file
  int error = 0;        // errno; EAGAIN: nothing now
};
IoResult ReadSome(int fd, std::span<std::byte> out);
IoResult WriteSome(int fd, Bytes bytes);
// For the little that a new connection always takes. False: it does not.
bool WriteAll(int fd, Bytes bytes);

// Waits for `events` on one descriptor. True: there is something (or an error to be found by
// reading); false: the time `until` has come.
bool WaitFor(int fd, short events, Time until);
// As poll(); after a failure other than EINTR it has slept a little, so that nobody spins.
int PollUntil(std::span<pollfd> fds, Time until);
void SleepUntil(Time until);

// Raises the soft limit of descriptors towards the hard one so that `more` fit beside those open
// now. kSystemError naming need and limit if they do not.
Status EnsureDescriptors(size_t more);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_SOCKET_H_
