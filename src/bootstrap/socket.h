// SPDX-License-Identifier: Apache-2.0
//
// Non-blocking stream sockets (TCP and abstract unix) for bootstrap and control. Every descriptor
// is close-on-exec, no write raises SIGPIPE, and no function returns EINTR.
#ifndef INCCL_BOOTSTRAP_SOCKET_H_
#define INCCL_BOOTSTRAP_SOCKET_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/unique_id.h"
#include "config/variables.h"

namespace inccl::bootstrap {

inline constexpr Time kCancelLag = 50 * kMillisecond;  // until a wait ends that is cancelled

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // An abstract name, which has no file; at most kMaxUnixName characters.
  static SocketAddress Unix(std::string_view name);
  static SocketAddress Tcp(const UniqueIdAddress& address);
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  std::string Host() const;      // of TCP: "192.0.2.1", "[::1]"
  std::string ToString() const;  // "192.0.2.1:4711", "[::1]:4711", "unix socket @name"
};
inline constexpr size_t kMaxUnixName = 100;

// *in_use, if not null: whether another socket has the address.
Result<UniqueFd> Listen(const SocketAddress& address, bool* in_use = nullptr);
// Listens at a free TCP port of the range, which it puts into *address.
Result<UniqueFd> ListenAt(UniqueIdAddress* address, const PortRange& ports = {});
// Listens at a free port of each address; drops those where that fails, e.g. an IPv6 address that
// is still tentative. Fails if none is left.
Result<std::vector<UniqueFd>> ListenAtAll(std::vector<UniqueIdAddress>* addresses,
                                          const PortRange& ports = {});
// The port of a TCP listener (for one that asked for port 0).
Result<uint16_t> LocalPort(int fd);
// Starts a connection; the caller waits until it is writable and then calls PendingError. *error is
// 0, the errno of a failed connect, or one that IsLack of a socket; then another attempt may
// succeed.
Result<UniqueFd> Connect(const SocketAddress& address, int* error);
// No descriptor or memory, now.
bool IsLack(int error);
// The text of an errno; of EMFILE with the limit.
std::string SocketErrorText(int error);
int PendingError(int fd);
// Firewalls forget connections that are idle for minutes. TCP probes this one after 20 s, and finds
// within 50 s that nothing comes back.
void ProbeWhenIdle(int fd);

// Returns the next connection, or an invalid fd with *error EAGAIN (none) or another errno.
UniqueFd Accept(int listener, SocketAddress* peer, int* error);
// Closes the connection so that the other side sees a reset.
void ResetConnection(UniqueFd fd);

// Credentials of the process at the other end of a unix socket.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> GetPeerCredentials(int fd);

struct IoResult {
  size_t bytes = 0;
  bool closed = false;  // end of file
  int error = 0;        // errno; EAGAIN: try again later
};
IoResult ReadSome(int fd, std::span<std::byte> out);
IoResult WriteSome(int fd, Bytes bytes);
// Writes a few bytes, which a new connection accepts: at once, or, where the machine is short of
// memory, within 10 ms. Returns false if it does not.
bool WriteAll(int fd, Bytes bytes);

// Waits for `events` on one descriptor. Returns true if there is an event (or an error, which
// reading reports) and false at the time `until`.
bool WaitFor(int fd, short events, Time until);
// Like poll(); sleeps briefly after a failure other than EINTR, so that callers do not spin.
int PollUntil(std::span<pollfd> fds, Time until);
void SleepUntil(Time until);

// Raises the soft limit of descriptors, up to the hard limit, to make room for `more` beside the
// open ones. If that is not possible, a kSystemError names the needed number and the limit.
Status EnsureDescriptors(size_t more);

// Passes descriptors over a unix socket with one message of 8 bytes: "icf1", count u32.

inline constexpr size_t kMaxSharedFds = 16;
inline constexpr size_t kFdMessageBytes = 8;

// Returns false if the caller must try again: the socket is full, or too many descriptors are in
// flight.
Result<bool> SendFds(int socket, std::span<const int> fds);

// Receives what SendFds sent, over as many calls as needed.
class FdReceiver {
 public:
  // Returns true when complete. Errors: the peer has gone (kRemoteError) or sent something else
  // (kInternalError), or this process has no descriptors left (kSystemError).
  Result<bool> Receive(int socket);
  std::vector<UniqueFd> Take() { return std::move(fds_); }

 private:
  size_t have_ = 0;
  std::array<std::byte, kFdMessageBytes> message_{};
  std::vector<UniqueFd> fds_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_SOCKET_H_
